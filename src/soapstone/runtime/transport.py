"""How ranks talk. The executor sees this interface alone."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Transport(Protocol):
    """Messages are numbered by the row of their task. A send's tensor stays untouched until `finish`."""

    rank: int
    size: int

    def prepare(self, groups: list[tuple[int, ...]]) -> None:
        """Make ready for all-reduces among these groups of ranks; every rank calls it with the same list."""

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        """Announce a message of the coming step, in the order of the plan."""

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None: ...

    def receive(self, row: int) -> torch.Tensor:
        """The message that was announced for this row, once it is here."""
        ...

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        """The sum over these ranks, the same to the bit on each of them."""
        ...

    def finish(self) -> None:
        """Wait until everything that was sent has left."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. Not for tensors of the model."""
        ...

    def fail(self, reason: str) -> None:
        """Let the other ranks know that this one has given up, as far as this transport can."""
