"""Counts the bytes that torch's ops hold on the CPU, where no allocator does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of the given tensors, and of all that ops make in its context, while they live."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._references: dict[int, ref[Any]] = {}
        self.now = self.peak = 0
        for tensor in tensors:
            self._count(tensor)

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        number = storage._cdata
        if tensor.is_meta or number in self._sizes:
            return
        self._sizes[number] = storage.nbytes()
        self._references[number] = ref(storage, lambda _: self._drop(number))
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _drop(self, number: int) -> None:
        self.now -= self._sizes.pop(number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, torch.Tensor):
                self._count(value)
        return made


def peak_of(step: Callable[[], object], batch: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> int:
    """The most bytes of a step, with the batch, parameters and the optimizer's state, which exist already."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values()]
    with Allocations([*batch, *parameters, *(value for value in states if isinstance(value, torch.Tensor))]) as counted:
        step()
    found: int = counted.peak
    return found
