"""The rows of a task graph: their kinds and columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ..graph import Op

KINDS = ("forward", "backward", "combine", "transfer", "sync", "update")
FORWARD, BACKWARD, COMBINE, TRANSFER, SYNC, UPDATE = range(6)
TASK = np.dtype(
    [("id", "u8"), ("kind", "i4"), ("op", "i4"), ("part", "i4"), ("ready", "i8"), ("start", "i8"), ("end", "i8"),
     ("latency", "i8"), ("bytes", "i8")]
)  # fmt: skip


def extents_of(op: Op, degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents of every part, in row-major order: part i of d over n is [i n // d, (i + 1) n // d)."""
    sizes = [
        [(i + 1) * dim.size // degree - i * dim.size // degree for i in range(degree)]
        for dim, degree in zip(op.dims, degrees)
    ]
    return list(product(*sizes))
