"""Ranks as threads of one process, for trying and testing.

In strict mode a rank's messages of a round are one group, as NCCL has them: none is done before all of the group are,
the peer's group must be of the same round and hold the same messages in the same order, and the two must have been
connected before. What passes so cannot hang on NCCL, which has fewer reasons to wait.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ...errors import RankError
from .encoding import received, sent
from .protocol import Incoming, Outgoing, Pair, Pending, Row

T = TypeVar("T")


class _Half(NamedTuple):
    """One rank's side of what it exchanges with another in a round."""

    number: int
    sent: list[tuple[int, torch.Tensor]]  # (row, tensor), in order
    awaited: list[int]  # rows

    @property
    def rows(self) -> list[int]:
        return [row for row, _ in self.sent]


class _Hub:
    """What the ranks share: one lock, the messages on their way, and the meetings of each set of ranks."""

    def __init__(self, size: int, strict: bool, timeout: float) -> None:
        self.size, self.strict, self.timeout = size, strict, timeout
        self.changed = threading.Condition()
        self.letters: dict[tuple[int, int, int], torch.Tensor] = {}  # by (source, target, row)
        self.halves: dict[tuple[int, int], deque[_Half]] = defaultdict(deque)  # by (rank, peer)
        self.open: set[Pair] = set()
        self.meetings: dict[tuple[Any, ...], dict[int, tuple[int, Any]]] = {}
        self.taken: dict[tuple[Any, ...], int] = {}
        self.failure: tuple[int, str] | None = None  # the rank that failed first, and why

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, under the lock, until ready; raise RankError where a rank failed or nothing comes."""
        deadline = time.monotonic() + self.timeout
        while not ready():
            if self.failure is not None:
                rank, reason = self.failure
                raise RankError(f"rank {rank} failed: {reason}")
            if not self.changed.wait(max(deadline - time.monotonic(), 0)) and not ready():
                reason = "the ranks wait for one another, or need a longer timeout"
                raise RankError(f"{what}: nothing came for {self.timeout:g} s; {reason}")


class ThreadTransport:
    def __init__(self, hub: _Hub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self._counts: dict[tuple[int, ...], int] = defaultdict(int)

    def open(self, pairs: Iterable[Pair], meetings: Mapping[tuple[int, ...], int]) -> None:
        everyone = self.exchange(set(pairs))
        if any(own != everyone[0] for own in everyone):
            raise RankError("the ranks want to connect different pairs")
        with self.hub.changed:
            self.hub.open |= everyone[0]

    def expect(self, message: Incoming) -> None:
        pass

    def round(self, number: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> list[Pending]:
        if not self.hub.strict:
            return self._by_rows(outgoing, incoming)
        found = self._as_one_group(number, outgoing, incoming)
        return [lambda row=message.row: found[row] for message in incoming]  # type: ignore[misc]

    def _by_rows(self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> list[Pending]:
        with self.hub.changed:
            for row, target, tensor in outgoing:
                self.hub.letters[self.rank, target, row] = tensor.clone()
            self.hub.changed.notify_all()
        return [lambda message=message: self._take(message) for message in incoming]  # type: ignore[misc]

    def _take(self, message: Incoming) -> torch.Tensor:
        hub, key = self.hub, (message.source, self.rank, message.row)
        with hub.changed:
            hub.wait(lambda: key in hub.letters, f"rank {self.rank} receives task {message.row}")
            return hub.letters.pop(key)

    def _as_one_group(
        self, number: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]
    ) -> dict[int, torch.Tensor]:
        """What came in, by row, once every peer has come to the same round with the same messages."""
        hub, found = self.hub, dict[int, torch.Tensor]()
        peers = {message.target for message in outgoing} | {message.source for message in incoming}
        halves = {peer: self._half(number, peer, outgoing, incoming) for peer in peers}
        with hub.changed:
            for peer, half in halves.items():
                hub.halves[self.rank, peer].append(half)
            hub.changed.notify_all()
            what = f"rank {self.rank} in round {number} waits for ranks {sorted(peers)}"
            hub.wait(lambda: all(hub.halves[peer, self.rank] for peer in peers), what)
            for peer, ours in halves.items():
                theirs = hub.halves[peer, self.rank].popleft()
                if (ours.number, ours.rows, ours.awaited) != (theirs.number, theirs.awaited, theirs.rows):
                    raise RankError(
                        f"rank {self.rank} in round {number} sends {ours.rows} to rank {peer} and awaits "
                        f"{ours.awaited}, but rank {peer} in round {theirs.number} awaits {theirs.awaited} and sends "
                        f"{theirs.rows}"
                    )
                found.update(theirs.sent)
        return found

    def _half(self, number: int, peer: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> _Half:
        if (min(self.rank, peer), max(self.rank, peer)) not in self.hub.open:
            raise RankError(f"ranks {self.rank} and {peer} talk in round {number}, but were never connected")
        sent = [(row, tensor.clone()) for row, target, tensor in outgoing if target == peer]
        return _Half(number, sent, [message.row for message in incoming if message.source == peer])

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        shares = self._meet(ranks, row, tensor.detach().clone())
        total: torch.Tensor = shares[0].clone()
        for share in shares[1:]:
            total += share
        return lambda: total

    def reduce_scatter(self, row: int, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        total = self.all_reduce(row, rows, ranks)()
        return lambda: total[ranks.index(self.rank)]

    def all_gather(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        found = torch.stack(self._meet(ranks, row, tensor.detach().clone()))
        return lambda: found

    def poll(
        self, ballot: torch.Tensor, weights: torch.Tensor | None, count: int
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        if self.size == 1:
            return lambda: (ballot, weights)
        found = self._meet(tuple(range(self.size)), Row.WEIGHT, (ballot, weights))
        given = [weights.double() for _, weights in found if weights is not None]
        total = torch.stack(given).sum(0) if given else None
        votes = torch.stack([ballot for ballot, _ in found]).sum(0)
        return lambda: (votes, total)

    def finish(self) -> None:
        pass

    def exchange(self, value: Any) -> list[Any]:
        """Encoded as processes would send it, so that a test with threads finds values that cannot be sent."""
        if self.size == 1:
            return [value]
        return received(self._meet(tuple(range(self.size)), Row.EXCHANGE, sent(value)))

    def note(self, doing: str) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        with self.hub.changed:
            self.hub.failure = self.hub.failure or (self.rank, reason)
            self.hub.changed.notify_all()

    def at_failure(self, act: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass

    def _meet(self, ranks: tuple[int, ...], row: int, value: Any) -> list[Any]:
        """Meet the other ranks of a set and get everyone's value, by rank."""
        hub = self.hub
        key = (*ranks, "meeting", self._counts[ranks])
        self._counts[ranks] += 1
        with hub.changed:
            shares = hub.meetings.setdefault(key, {})
            shares[self.rank] = (row, value)
            hub.changed.notify_all()
            hub.wait(lambda: len(shares) == len(ranks), f"rank {self.rank} meets {ranks} for task {row}")
            rows = {number for number, _ in shares.values()}
            if len(rows) > 1:
                raise RankError(f"ranks {ranks} meet for different tasks: {sorted(rows)}")
            hub.taken[key] = hub.taken.get(key, 0) + 1
            if hub.taken[key] == len(ranks):
                del hub.meetings[key], hub.taken[key]
        return [shares[rank][1] for rank in ranks]


def alone() -> ThreadTransport:
    """For a single rank, which has nobody to talk to."""
    return ThreadTransport(_Hub(1, False, 60.0), 0)


def run_threads(
    num_ranks: int, function: Callable[[int, ThreadTransport], T], *, strict: bool = False, timeout: float = 60.0
) -> list[T]:
    """Call `function(rank, transport)` on one thread a rank and return the results. The error of the rank that
    failed first is raised here, after every rank has stopped."""
    if type(num_ranks) is not int or num_ranks < 1:
        raise RankError(f"there cannot be {num_ranks!r} ranks; use 1 or more")
    hub = _Hub(num_ranks, strict, timeout)
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        transport = ThreadTransport(hub, rank)
        try:
            results[rank] = function(rank, transport)
        except BaseException as error:
            errors[rank] = error
            transport.fail(error)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors and hub.failure is not None:
        raise errors.get(hub.failure[0]) or next(iter(errors.values()))
    return [results[rank] for rank in range(num_ranks)]
