"""From an nn.Module and a loss to the operator graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from ..graph import OperatorGraph, Settings
from .build import build
from .read import trace
from .workload import Workload

__all__ = ["Workload", "capture"]


def capture(
    work: Workload | nn.Module,
    inputs: tuple[torch.Tensor, ...] = (),
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: tuple[torch.Tensor, ...] = (),
    kwargs: dict[str, Any] | None = None,
    batch_dim: int = 0,
    batch_norm: str = "global",
    chunk: int = 1,
) -> OperatorGraph:
    """Return the operator graph of a workload, or of a model with its inputs, loss and targets.

    `batch_norm="local"` takes statistics part by part. Recurrent layers are unrolled, `chunk` time steps to an op.
    Raises CaptureError where torch.export rejects the model, or the loss is not a scalar.
    """
    if not isinstance(work, Workload):
        work = Workload(work, inputs, loss=loss, targets=targets, kwargs=kwargs or {})
    if batch_norm not in ("global", "local"):
        raise CaptureError(f"batch_norm={batch_norm!r} is not known; use 'global' or 'local'")
    if type(batch_dim) is not int or batch_dim < 0:
        raise CaptureError(f"batch_dim={batch_dim!r} is not an axis, counted from 0")
    if type(chunk) is not int or chunk < 1:
        raise CaptureError(f"chunk={chunk!r} is not a number of time steps; use 1 or more")
    return build(trace(work, chunk, batch_norm), Settings(batch_dim, batch_norm, chunk, work.model.training))
