"""Figures for the README and docs, each measured side by side in one run."""
