"""The rows of a task graph: their kinds and columns."""

from __future__ import annotations

import numpy as np

KINDS = ("forward", "backward", "combine", "transfer", "sync", "update")
FORWARD, BACKWARD, COMBINE, TRANSFER, SYNC, UPDATE = range(6)
TASK = np.dtype(
    [("id", "u8"), ("kind", "i4"), ("op", "i4"), ("part", "i4"), ("ready", "i8"), ("start", "i8"), ("end", "i8"),
     ("latency", "i8"), ("bytes", "i8")]
)  # fmt: skip
