"""The paper's evaluation again: a script for each of its claims, our figures beside its own."""
