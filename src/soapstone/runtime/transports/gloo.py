"""Ranks as processes over gloo.

gloo matches messages by tag, and its sends wait for their receivers: so receives are posted before their turn, and the
tag is the task's row. It moves what lies on a GPU through pinned memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...errors import RankError
from .groups import gathered, raise_if_peer_lost, shared_groups
from .protocol import Incoming, Outgoing, Pair, Pending
from .signs import shared_signs


class _Sent(NamedTuple):
    number: int  # of the round
    tensor: torch.Tensor
    work: Any


class GlooTransport:
    """Raises RankError where torch.distributed is not initialised, or a peer is gone."""

    def __init__(self, place: torch.device | None = None) -> None:
        self.groups = shared_groups()
        self.rank, self.size = self.groups.rank, self.groups.size
        self._signs = shared_signs()
        self.place = torch.device("cpu") if place is None else place
        self._staged = self.place.type == "cuda"
        self._incoming: dict[int, tuple[torch.Tensor, Any]] = {}
        self._sent: dict[int, deque[_Sent]] = {}  # by target; one is not seen to be done before it is waited for
        self._swapped: list[tuple[torch.Tensor, Any]] = []
        self._gathered: dict[int, tuple[torch.Tensor, Any]] = {}  # by row, until it is waited for

    def open(self, pairs: Iterable[Pair], meetings: Mapping[tuple[int, ...], int]) -> None:
        self.groups.make(meetings)

    @raise_if_peer_lost()
    def expect(self, message: Incoming) -> None:
        if message.row in self._incoming:  # the first of two would take the message
            raise RankError("a step was not completed on this rank; start all ranks again")
        buffer = self._buffer(message.shape, message.dtype)
        self._incoming[message.row] = (buffer, dist.irecv(buffer, message.source, tag=message.row))

    @raise_if_peer_lost()
    def round(self, number: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> list[Pending]:
        for message in incoming:
            if message.row not in self._incoming:
                self.expect(message)
        for row, target, tensor in outgoing:
            self._send(number, row, target, self._readable(tensor))
        return [self._message(number, message) for message in incoming]

    def _send(self, number: int, row: int, target: int, tensor: torch.Tensor) -> None:
        work = dist.isend(tensor, target, tag=row)
        self._sent.setdefault(target, deque()).append(_Sent(number, tensor, work))

    def _message(self, number: int, message: Incoming) -> Pending:
        """Who sent it has by then posted all that it receives in earlier rounds, so those sends come to their end."""
        arrival = self._arrival(*self._incoming.pop(message.row))

        def arrived() -> torch.Tensor:
            found = arrival()
            sent = self._sent.get(message.source, ())
            while sent and sent[0].number < number:
                self._wait(sent[0].work, sent[0].tensor)
                sent.popleft()
            return found

        return arrived

    def _arrival(self, buffer: torch.Tensor, work: Any) -> Pending:
        return lambda: self._back(self._wait(work, buffer))

    @raise_if_peer_lost()
    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = self._readable(tensor)
        if ranks not in self.groups:
            return self._reduce_by_messages(row, tensor, ranks)
        work = self.groups[ranks].allreduce([tensor])  # what dist.all_reduce comes to, at a fifth of its price
        return self._arrival(tensor, work)

    def _reduce_by_messages(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Everyone to everyone, and everyone adds in the same order."""
        parts = {rank: tensor.clone() if rank == self.rank else torch.empty_like(tensor) for rank in ranks}
        works = self._swap(row, dict.fromkeys(ranks, parts[self.rank]), parts)

        def total() -> torch.Tensor:
            for other, work in works.items():
                self._wait(work, parts[other])
            tensor.copy_(parts[ranks[0]])
            for rank in ranks[1:]:
                tensor.add_(parts[rank])
            return self._back(tensor)

        return total

    @raise_if_peer_lost()
    def reduce_scatter(self, row: int, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        rows = self._readable(rows)
        if ranks not in self.groups:
            return self._scatter_by_messages(row, rows, ranks)
        own = self._buffer(tuple(rows.shape[1:]), rows.dtype)
        work = self.groups[ranks]._reduce_scatter_base(own, rows.view(-1))
        return self._arrival(own, work)

    @raise_if_peer_lost()
    def all_gather(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = self._readable(tensor)
        rows = self._buffer((len(ranks), *tensor.shape), tensor.dtype)
        if ranks not in self.groups:
            return self._gather_by_messages(row, tensor, rows, ranks)
        work = self.groups[ranks]._allgather_base(rows.view(-1), tensor)
        self._gathered[row] = tensor, work

        def whole() -> torch.Tensor:
            found = self._back(self._wait(work, rows))
            self._gathered.pop(row, None)
            return found

        return whole

    def _scatter_by_messages(self, row: int, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Every row to its rank, which adds in the ranks' order."""
        own = rows[ranks.index(self.rank)]
        parts = {rank: own if rank == self.rank else torch.empty_like(own) for rank in ranks}
        works = self._swap(row, {rank: rows[i] for i, rank in enumerate(ranks)}, parts)

        def total() -> torch.Tensor:
            for other, work in works.items():
                self._wait(work, parts[other])
            return self._back(torch.stack([parts[rank] for rank in ranks]).sum(0))

        return total

    def _gather_by_messages(
        self, row: int, tensor: torch.Tensor, rows: torch.Tensor, ranks: tuple[int, ...]
    ) -> Pending:
        rows[ranks.index(self.rank)] = tensor
        works = self._swap(row, dict.fromkeys(ranks, tensor), {rank: rows[i] for i, rank in enumerate(ranks)})

        def whole() -> torch.Tensor:
            for work in works.values():
                self._wait(work, rows)
            return self._back(rows)

        return whole

    def _swap(self, row: int, given: Mapping[int, torch.Tensor], taken: Mapping[int, torch.Tensor]) -> dict[int, Any]:
        """Exchange a tensor with every other rank; what is still to come."""
        others = [rank for rank in given if rank != self.rank]
        works = {other: dist.irecv(taken[other], other, tag=row) for other in others}
        self._swapped += [(given[other], dist.isend(given[other], other, tag=row)) for other in others]
        return works

    @raise_if_peer_lost()
    def poll(
        self, ballot: torch.Tensor, weights: torch.Tensor | None, count: int
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        first = len(ballot)
        numbers = torch.zeros(first + count, dtype=torch.float64)
        numbers[:first] = ballot
        if weights is not None:
            numbers[first:] = weights
        everyone = tuple(range(self.size))
        work = self.groups[everyone].allreduce([numbers])

        def answer() -> tuple[torch.Tensor, torch.Tensor | None]:
            found = self._wait(work, numbers)
            return found[:first], self._back(found[first:])

        return answer

    def finish(self) -> None:
        sent = [(tensor, work) for each in self._sent.values() for _, tensor, work in each]
        for tensor, work in (*sent, *self._swapped, *self._gathered.values()):
            self._wait(work, tensor)
        self._sent.clear()
        self._swapped.clear()
        self._gathered.clear()

    def exchange(self, value: Any) -> list[Any]:
        return gathered(value)

    def note(self, doing: str) -> None:
        self._signs.doing = doing

    def fail(self, error: BaseException) -> None:
        self._signs.announce(error)

    def at_failure(self, act: Callable[[], None]) -> None:
        self._signs.at_failure(lambda _: act())

    def close(self) -> None:
        self._signs.close()

    def _buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._staged)

    def _readable(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where gloo can read it."""
        if not self._staged:
            return tensor.contiguous()
        return self._buffer(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.place) if self._staged else tensor

    def _wait(self, work: Any, tensor: torch.Tensor) -> torch.Tensor:
        with raise_if_peer_lost():
            work.wait()
        return tensor
