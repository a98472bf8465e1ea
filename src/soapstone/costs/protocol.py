"""The question that a simulation asks of costs, once per (op, local extents, device kind)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..graph import OperatorGraph


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Nanoseconds of one part. Where the op combines, `finish_*` is the work behind the combine and the others the
    work before it; where it does not, `forward` and `backward` are all of it."""

    forward: int
    backward: int
    finish_forward: int = 1
    finish_backward: int = 1


Question = tuple[int, tuple[int, ...], bool]  # an op, a part's extents, and whether it combines


class Costs(Protocol):
    """Costs whose times follow from what an op computes may also have `by_signature = True`: then they are asked for
    one of the ops that are alike. Costs that answer many questions better at once than one by one may have
    `prepare(graph, questions, device_kind, told)`: it hears what comes, and tells the share that it is ready for."""

    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        """The times of a part of op `index` with these extents, one for each of its dims, on a device of that kind."""
        ...

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        """The optimizer's step: nanoseconds once, and for each element of a parameter."""
        ...
