"""Batches of other shapes than the captured one."""

from __future__ import annotations

import torch

from .models import ALL
from .training import Batches


def resized(batch: tuple[torch.Tensor, ...], *shape: int) -> tuple[torch.Tensor, ...]:
    """The batch with these lengths along its first axes, cut or filled by repetition."""
    for axis, size in enumerate(shape):
        batch = tuple(torch.cat([x, x], axis).narrow(axis, 0, size).contiguous() for x in batch)
    return batch


def some_batches(name: str) -> Batches:
    whole = ALL[name].workload().batch
    size = len(whole[0])
    lengths = [(size, 3)] if name in ("gpt", "transformer") else []
    shapes = [(size,), (size - 1,), (2,), (size + 1,), *lengths, (size,), (2,)]
    return [resized(whole, *shape) for shape in shapes]
