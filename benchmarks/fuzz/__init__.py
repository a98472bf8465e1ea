"""Damages input files at random, with a module for each kind of input. A damaged input must be refused in one sentence,
or make no difference."""
