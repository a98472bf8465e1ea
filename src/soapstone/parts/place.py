"""Where a kernel runs: one step of one part. And the table of kernels, which the families fill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Protocol

import torch

from ..graph import Step
from .frames import Box, lengths

Tensors = dict[str, torch.Tensor]  # by slot


class Draws(Protocol):
    """Where dropout masks come from."""

    def keep(self, place: Place) -> torch.Tensor:
        """Which of the part's elements stay."""
        ...


@dataclass(frozen=True)
class Place:
    """One step of one part: which of its dims and of each input it has."""

    step: Step
    dims: Box
    needs: Sequence[Box]
    draws: Draws | None = None
    updates: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def args(self) -> dict[str, Any]:
        return self.step.args

    def shape(self, output: int = 0) -> list[int]:
        """The local shape of an output."""
        extents = lengths(self.dims)
        return [prod(extents[d] for d in axis) for axis in self.step.writes[output]]

    def interval(self, name: str) -> tuple[int, int]:
        return next(box for dim, box in zip(self.step.dims, self.dims) if dim.name == name)

    def coordinates(self, name: str) -> torch.Tensor:
        """Where along a dim, all its factors together, each local element lies."""
        found = torch.zeros((), dtype=torch.int64)
        for dim, (lo, hi) in zip(self.step.dims, self.dims):
            if dim.name == name:
                found = (found[..., None] * dim.size + torch.arange(lo, hi)).reshape(-1)
        return found

    def all_of(self, name: str) -> bool:
        """Whether the part has a dim whole."""
        return all((lo, hi) == (0, dim.size) for dim, (lo, hi) in zip(self.step.dims, self.dims) if dim.name == name)

    def has(self, name: str) -> bool:
        return any(dim.name == name for dim in self.step.dims)

    def size(self, name: str) -> int:
        """The whole size of a dim, all its factors together."""
        return prod(dim.size for dim in self.step.dims if dim.name == name)

    def extent(self, name: str) -> int:
        return self.step.sizes(list(self.dims))[name]

    def argument(self, name: str) -> Any:
        """An argument as torch takes it."""
        return plain_to_torch(self.args.get(name))


Kernel = Callable[[Place, Tensors], Any]


class Combined(ABC):
    """A partial, and what is left to do once it is whole."""

    finish_reads: ClassVar[bool] = False  # `finish` differentiates by the inputs, too
    # The partial is a sum and its weight, the weight takes every input but `self`, and `finish` is linear in the sum.
    weighs: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def partial(place: Place, inputs: Tensors) -> torch.Tensor:
        """A part's share."""

    @staticmethod
    @abstractmethod
    def finish(place: Place, inputs: Tensors, total: torch.Tensor) -> torch.Tensor:
        """A part's output, once all shares are combined."""


class CombinedOrAlone(Combined):
    """Where a part has nothing to combine with, torch does both in one call."""

    @staticmethod
    @abstractmethod
    def alone(place: Place, inputs: Tensors) -> torch.Tensor:
        """A part's output, without a combine."""


KERNELS: dict[str, Kernel] = {}
COMBINED: dict[str, type[Combined]] = {}


def kernel(*kinds: str) -> Callable[[Kernel], Kernel]:
    """Register what these kinds of step compute; a kind without a kernel calls torch's own op."""

    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(kinds, function))
        return function

    return register


def combined(*kinds: str) -> Callable[[type[Combined]], type[Combined]]:
    def register(functions: type[Combined]) -> type[Combined]:
        COMBINED.update(dict.fromkeys(kinds, functions))
        return functions

    return register


def compute(place: Place, inputs: Tensors) -> Any:
    """What the step makes of its local inputs."""
    return (KERNELS.get(place.step.kind, call) if place.step.ruled else call)(place, inputs)


def call(place: Place, inputs: Tensors) -> Any:
    """torch's own op, its lists put together again."""
    step = place.step
    namespace, _, name = step.kind.rpartition("::")
    overload = getattr(getattr(getattr(torch.ops, namespace or "aten"), name), step.overload or "default")
    arguments: dict[str, Any] = {name: plain_to_torch(value) for name, value in step.args.items()}
    for slot, tensor in inputs.items():
        name, dot, place_in_list = slot.partition(".")
        if dot:
            listed = arguments.setdefault(name, [])
            listed += [None] * (int(place_in_list) - len(listed)) + [tensor]
        else:
            arguments[name] = tensor
    return overload(**arguments)


def plain_to_torch(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value
