"""The rows of a task graph: their kinds and columns."""

from __future__ import annotations

import numpy as np

from .._core import Kind

KINDS = tuple(kind.name for kind in Kind)
FORWARD, BACKWARD, COMBINE = Kind.forward, Kind.backward, Kind.combine
TRANSFER, SYNC, UPDATE, GATHER = Kind.transfer, Kind.sync, Kind.update, Kind.gather
COMMUNICATION = (TRANSFER, COMBINE, SYNC, GATHER)
TASK = np.dtype(
    [("id", "u8"), ("kind", "i4"), ("op", "i4"), ("part", "i4"), ("microbatch", "i4"),
     ("ready", "i8"), ("start", "i8"), ("end", "i8"), ("latency", "i8"), ("bytes", "i8")]
)  # fmt: skip
