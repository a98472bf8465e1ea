"""Checkpoints that outlive a strategy: every rank writes what it keeps, and reads what it needs."""

from .folders import latest
from .loading import load
from .plain import check_kind, read_weights, whole_state, write_weights
from .saving import Saver

__all__ = ["Saver", "check_kind", "latest", "load", "read_weights", "whole_state", "write_weights"]
