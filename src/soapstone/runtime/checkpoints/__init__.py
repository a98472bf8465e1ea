"""Checkpoints that outlive a strategy: every rank writes what it keeps, and reads what it needs."""

from .saving import latest, load, save

__all__ = ["latest", "load", "save"]
