"""Elementwise ops that torch does not tag as such; the tagged ones need no rule of their own."""

from __future__ import annotations

from .table import POINTWISE

RULES = dict.fromkeys(("detach", "_to_copy", "hardswish", "__and__", "__or__", "__xor__", "where", "fill"), POINTWISE)
