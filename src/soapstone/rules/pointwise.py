"""Elementwise ops: those that torch does not tag as such, and what the others keep for backward.

A tagged op needs no line here; without one, it is taken to keep its inputs.
"""

from __future__ import annotations

from dataclasses import replace

from .table import POINTWISE

_KEEPS_NOTHING = (
    "add",
    "sub",
    "rsub",
    "neg",
    "fill",
    "round",
    "floor",
    "ceil",
    "sign",
    "logical_not",
)
_KEEPS_ITS_OUTPUT = ("relu", "sigmoid", "tanh", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tan")
_KEEPS_FACTORS = ("mul", "div")

RULES = {
    **dict.fromkeys(("hardswish", "__and__", "__or__", "__xor__"), POINTWISE),
    **dict.fromkeys(_KEEPS_NOTHING, replace(POINTWISE, saves="nothing")),
    **dict.fromkeys(_KEEPS_ITS_OUTPUT, replace(POINTWISE, saves="outputs")),
    **dict.fromkeys(_KEEPS_FACTORS, replace(POINTWISE, saves="factors")),
    # No op of its own, so that autocast changes no ops: one that reads a cast weight keeps the weight as its parameter.
    "_to_copy": replace(POINTWISE, saves="nothing", shape=True, copies=True),
    "detach": replace(POINTWISE, saves="nothing", detaches=True),
    "where": replace(POINTWISE, saves="condition"),
    "masked_fill": replace(POINTWISE, saves="mask"),
}
