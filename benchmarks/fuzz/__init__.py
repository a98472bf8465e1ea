"""Inputs damaged at random, one file for each subject: each must be refused in a sentence, or make no difference."""
