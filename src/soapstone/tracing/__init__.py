"""From an nn.Module and a loss to the operator graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from ..graph import OperatorGraph, Settings
from .build import build
from .frozen import FrozenValues
from .precision import Autocast, device_type, precision_of
from .read import trace
from .workload import Workload, flattened

__all__ = ["FrozenValues", "Workload", "capture", "capture_again", "capture_output", "flattened"]


def capture(
    work: Workload | nn.Module,
    inputs: tuple[torch.Tensor, ...] = (),
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: tuple[torch.Tensor, ...] = (),
    kwargs: dict[str, Any] | None = None,
    batch_dim: int | Sequence[int | None] = 0,
    batch_norm: str = "global",
    chunk: int = 1,
    precision: str = "",
) -> OperatorGraph:
    """Return the operator graph of a workload, or of a model with its inputs, loss and targets.

    `batch_dim` is the batch's axis, or a list with one for each tensor of `work.batch`, None where it has none.
    `batch_norm="local"` takes statistics part by part. Recurrent layers are unrolled, `chunk` time steps to an op.
    `precision="autocast"` casts as torch.autocast("cuda", torch.bfloat16) does, even without a GPU,
    "autocast:cpu" as the CPU's autocast does; so does an autocast around this call. `precision="mixed"` computes in
    bfloat16 with parameters that stay float32, as FSDP2's MixedPrecisionPolicy does. Raises CaptureError where
    torch.export rejects the model, or the loss is not a scalar.
    """
    if not isinstance(work, Workload):
        work = Workload(work, inputs, loss=loss, targets=targets, kwargs=kwargs or {})
    if batch_norm not in ("global", "local"):
        raise CaptureError(f"batch_norm={batch_norm!r} is not known; use 'global' or 'local'")
    if type(chunk) is not int or chunk < 1:
        raise CaptureError(f"chunk={chunk!r} is not a number of time steps; use 1 or more")
    dims = _batch_dims(batch_dim, work.batch)
    asked = precision_of(precision) or Autocast.active(device_type(work))
    with torch.enable_grad():
        found = trace(work.off_meta(), chunk, batch_norm, asked)
    return build(found, Settings(dims, batch_norm, chunk, work.model.training, str(asked or "")))


def capture_again(work: Workload, like: OperatorGraph) -> OperatorGraph:
    """The graph of a workload as it is now, with the settings of another. Raises CaptureError as `capture` does."""
    settings, work = like.settings, work.off_meta()  # a rank may have freed some of the parameters
    return capture(
        work.filled(*(x.to(work.place) for x in work.batch)),
        batch_dim=list(settings.batch_dims),
        batch_norm=settings.batch_norm,
        chunk=settings.chunk,
        precision=settings.precision,
    )


def capture_output(work: Workload, like: OperatorGraph) -> OperatorGraph:
    """The graph of a model's output in eval mode, with the settings that its training was captured with. The output
    stands where a loss would. Raises CaptureError where it is not one tensor."""
    training, settings = [(module, module.training) for module in work.model.modules()], like.settings
    precision = precision_of(settings.precision)
    inputs = Workload(work.model, work.inputs, loss=_as_it_is if work.loss else None, kwargs=work.kwargs)
    work.model.eval()
    try:
        with torch.no_grad():  # as eval mode goes with
            found = trace(inputs.off_meta(), settings.chunk, settings.batch_norm, precision, any_output=True)
    finally:
        for module, trains in training:  # some may be in eval mode for good
            module.training = trains
    return build(found, replace(settings, batch_dims=settings.batch_dims[: len(inputs.batch)], training=False))


def _as_it_is(output: torch.Tensor) -> torch.Tensor:
    return output


def _batch_dims(given: int | Sequence[int | None], batch: tuple[torch.Tensor, ...]) -> tuple[int | None, ...]:
    """The batch's axis of each tensor; one number serves all that have such an axis."""
    if type(given) is int and given >= 0:
        dims = tuple(given if tensor.ndim > given else None for tensor in batch)
        sizes = sorted({tensor.shape[given] for tensor in batch if tensor.ndim > given})
        if any(size % max(sizes[0], 1) for size in sizes):  # several rows of a sample may lie in a row
            raise CaptureError(
                f"tensors of the batch have {' and '.join(map(str, sizes))} samples along axis {given}; give all as "
                "many, or batch_dim= a list with None for those that have none"
            )
        return dims
    if not isinstance(given, list | tuple):
        raise CaptureError(f"batch_dim={given!r} is not an axis, counted from 0, nor a list of them")
    if len(given) != len(batch):
        raise CaptureError(f"batch_dim={given!r} has {len(given)} items for {len(batch)} tensors in work.batch")
    for axis, tensor in zip(given, batch):
        if axis is not None and (type(axis) is not int or not 0 <= axis < tensor.ndim):
            raise CaptureError(f"batch_dim={given!r}: a tensor of shape {list(tensor.shape)} has no axis {axis!r}")
    return tuple(given)
