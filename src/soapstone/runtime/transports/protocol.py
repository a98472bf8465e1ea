"""How ranks talk. The executor sees this interface alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import torch

Pending = Callable[[], torch.Tensor]  # waits for a tensor that is on its way
Pair = tuple[int, int]  # two ranks, the smaller first


class Outgoing(NamedTuple):
    """A message to another rank, numbered by the row of its task."""

    row: int
    target: int
    tensor: torch.Tensor


class Incoming(NamedTuple):
    """A message from another rank, before it is here."""

    row: int
    source: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Row(IntEnum):
    """Meetings of ranks that are not tasks of the plan; a task's row is 0 or more."""

    LOSS = -1
    WEIGHT = -2  # of a mean loss
    FIRST_WEIGHTS = -3
    NORM = -4  # of all gradients
    OPENING = -5  # of a connection
    EXCHANGE = -6  # of what is not a tensor
    SPREAD = 1 << 30  # of gradients to devices that have none of their own; a message's tag, too, beyond all tasks


class Transport(Protocol):
    """A tensor that was handed over stays untouched until `finish`. All ranks talk in one order of rounds and
    all-reduces; each takes part in those that concern it."""

    rank: int
    size: int

    def open(self, pairs: Iterable[Pair], meetings: Mapping[tuple[int, ...], int]) -> None:
        """Connect the pairs of ranks that will ever talk, and the sets of ranks that will sum, given with the bytes
        that each sums in a step. Every rank calls it with the same."""

    def expect(self, message: Incoming) -> None:
        """A message of the coming step, in the order of the plan, so that it may be received before its turn."""

    def round(self, number: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> list[Pending]:
        """Exchange this rank's messages of one round, as one group. No message of a round waits for another one of it,
        and messages between two ranks are listed in the same order on both. Returns what came in, each on its way."""
        ...

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """The sum over these ranks, the same to the bit on each of them; perhaps in the tensor's own memory."""
        ...

    def reduce_scatter(self, row: int, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Of the sum over these ranks, the row of this one; `rows` has one for each of them."""
        ...

    def all_gather(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """The tensors of these ranks, a row for each; all are equally long."""
        ...

    def poll(
        self, ballot: torch.Tensor, weights: torch.Tensor | None, count: int
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        """Sum two things over all ranks when a step begins: ballots of whole numbers, and weights, so many on each
        rank. The answer is on its way while the first segment runs."""
        ...

    def finish(self) -> None:
        """Wait until everything that was sent has left."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, by rank; too slow for the messages of a step. A value consists of numbers, strings,
        bytes, tensors (which arrive on the CPU), lists, tuples, sets, dicts and objects of classes that are `carried`.
        Raises RankError on all ranks if a value has anything else in it."""
        ...

    def note(self, doing: str) -> None:
        """What this rank does from now on, for others that wait for it: "in step 3"."""

    def fail(self, error: BaseException) -> None:
        """Let the other ranks know that this one has given up, as far as this transport can."""

    def at_failure(self, act: Callable[[], None]) -> None:
        """Do something where this rank has failed, or heard that another has."""

    def close(self) -> None:
        """This rank will not talk again."""
