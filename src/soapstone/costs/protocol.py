"""The question that a simulation asks of costs, once per (op, local extents, device kind)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..graph import OperatorGraph


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Nanoseconds of one part. Where the op combines, `finish_*` is the work after the combine and the others the
    work before it; where it does not, `forward` and `backward` are all of it. `launch_*` is what the host takes to
    launch each, while the device works on what was launched before; nothing where the device is the host."""

    forward: int
    backward: int
    finish_forward: int = 1
    finish_backward: int = 1
    launch_forward: int = 0
    launch_backward: int = 0
    launch_finish_forward: int = 0
    launch_finish_backward: int = 0


Question = tuple[int, tuple[int, ...], bool]  # an op, a part's extents, and whether it combines


class Costs(ABC):
    """How long parts of ops and updates take. Derive from it to bring costs of your own."""

    by_signature = False  # times follow from what an op computes: ask for one of the ops that are alike

    @abstractmethod
    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        """The times of a part of op `index` with these extents, one for each of its dims, on a device of that kind."""

    @abstractmethod
    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        """The optimizer's step: nanoseconds once, and for each element of a parameter."""


class PreparedCosts(Costs):
    """Costs that answer many questions better at once than one by one."""

    @abstractmethod
    def prepare(
        self, graph: OperatorGraph, questions: Sequence[Question], device_kind: str, progress: Callable[[float], None]
    ) -> None:
        """Hears all questions before they are asked; `progress` hears the share that it is ready for."""


def unheard(_: float) -> None:
    """The progress that nobody listens to."""
