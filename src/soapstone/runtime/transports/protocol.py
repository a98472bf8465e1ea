"""How ranks talk. The executor sees this interface alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

Pending = Callable[[], torch.Tensor]  # waits for a tensor that is on its way


class Transport(Protocol):
    """Messages are numbered by the row of their task. A tensor that was handed over stays untouched until `finish`."""

    rank: int
    size: int

    def prepare(self, meetings: dict[tuple[int, ...], int]) -> None:
        """Make ready for all-reduces among these sets of ranks, given with the bytes that each sums in a step; every
        rank calls it with the same."""

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        """Announce a message of the coming step, in the order of the plan."""

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None: ...

    def receive(self, row: int) -> Pending:
        """The message that was announced for this row."""
        ...

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """The sum over these ranks, the same to the bit on each of them; perhaps in the tensor's own memory."""
        ...

    def flush(self) -> None:
        """Compute comes next: what was gathered to go together must go now."""

    def finish(self) -> None:
        """Wait until everything that was sent has left."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. Not for what happens in each step."""
        ...

    def fail(self, reason: str) -> None:
        """Let the other ranks know that this one has given up, as far as this transport can."""
