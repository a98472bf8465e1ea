"""Checkpoints that outlive a strategy: every rank writes what it keeps, and reads what it needs."""

from .choosing import chosen_alone
from .folders import latest
from .loading import load
from .plain import check_kind, read_weights, state_of_checkpoint, whole_state, write_weights
from .saving import Saver

__all__ = [
    "Saver", "check_kind", "chosen_alone", "latest", "load", "read_weights", "state_of_checkpoint", "whole_state",
    "write_weights",
]  # fmt: skip
