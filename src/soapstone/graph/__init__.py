"""What a model computes, as plain values: no torch."""

from .facts import Facts, op_bytes, scaled
from .microbatch import microbatch, reduction
from .operator_graph import OperatorGraph
from .ops import (
    ITEM_SIZES,
    Combine,
    Dim,
    Draw,
    Factor,
    Line,
    Op,
    Operand,
    Reads,
    Settings,
    Step,
    StepDim,
    Tensor,
    Value,
    Writes,
    extents_by_name,
)

__all__ = [
    "ITEM_SIZES",
    "Combine",
    "Dim",
    "Draw",
    "Factor",
    "Facts",
    "Line",
    "Op",
    "Operand",
    "OperatorGraph",
    "Reads",
    "Settings",
    "Step",
    "StepDim",
    "Tensor",
    "Value",
    "Writes",
    "extents_by_name",
    "microbatch",
    "op_bytes",
    "reduction",
    "scaled",
]
