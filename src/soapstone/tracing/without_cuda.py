"""Capture by CUDA's rules on a machine whose torch has no CUDA.

Fake tensors on CUDA need no device, but a few of torch's calls ask for one all the same; those are done another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensor


@contextmanager
def cuda_rules_allowed() -> Iterator[None]:
    """Let torch.autocast("cuda") be what it says, which torch would switch off; and index fake tensors on CUDA, and
    follow batch norm's statistics, which it would refuse."""
    if torch.cuda.is_available():
        yield
        return
    from torch._decomp import decompositions  # export loads it anyway, but later

    own, batch_norm = torch.Tensor.__getitem__, decompositions.native_batch_norm_helper

    def getitem(tensor: torch.Tensor, index: Any) -> torch.Tensor:
        return indexed(tensor, index) if isinstance(tensor, FakeTensor) and tensor.is_cuda else own(tensor, index)

    def norm(*args: Any) -> Any:  # the last argument says whether it gives statistics out instead of writing to them
        return batch_norm(*args[:-1], True)  # type: ignore[call-arg]

    with (
        mock.patch.object(decompositions, "native_batch_norm_helper", norm),
        mock.patch.object(torch.Tensor, "__getitem__", getitem),
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
    ):
        yield


def indexed(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]` by calls of ops. No masks: what they give has no fixed shape."""
    given = list(index) if isinstance(index, tuple) else [index]
    if not any(item is Ellipsis for item in given):
        given.append(Ellipsis)
    axis, tensors = 0, dict[int, torch.Tensor]()
    for position, item in enumerate(given):
        if item is None:
            tensor, axis = tensor.unsqueeze(axis), axis + 1
        elif item is Ellipsis:
            axis = tensor.ndim - sum(later is not None for later in given[position + 1 :])
        elif isinstance(item, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, item.start, item.stop, item.step or 1)
            axis += 1
        elif isinstance(item, int):
            tensor = tensor.select(axis, item)
        else:
            tensors[axis], axis = torch.as_tensor(item, device=tensor.device), axis + 1
    if not tensors:
        return tensor
    found: torch.Tensor = torch.ops.aten.index.Tensor(tensor, [tensors.get(i) for i in range(max(tensors) + 1)])
    return found
