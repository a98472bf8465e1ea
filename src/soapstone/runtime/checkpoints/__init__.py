"""Checkpoints that outlive a strategy: every rank writes what it keeps, and reads what it needs."""

from .choosing import chosen_alone
from .dcp_metadata import is_dcp
from .dcp_saving import check_new, convert, save_dcp
from .folders import latest
from .loading import load
from .plain import check_kind, read_weights, state_of_checkpoint, whole_state, write_weights
from .saving import Saver

__all__ = [
    "Saver", "check_kind", "check_new", "chosen_alone", "convert", "is_dcp", "latest", "load", "read_weights",
    "save_dcp", "state_of_checkpoint", "whole_state", "write_weights",
]  # fmt: skip
