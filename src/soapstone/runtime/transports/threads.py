"""Ranks as threads of one process, for trying and testing.

In strict mode a message has no tag: a send waits until its receiver takes it, and both sides must come to it in the
same order. What passes so cannot deadlock on NCCL, which matches by order alone.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...errors import RankError
from .protocol import Pending

T = TypeVar("T")


class _Hub:
    """What the ranks share: one lock, the letters on their way, and the rounds of each group."""

    def __init__(self, size: int, strict: bool, timeout: float) -> None:
        self.size, self.strict, self.timeout = size, strict, timeout
        self.changed = threading.Condition()
        self.letters: dict[tuple[int, int], deque[tuple[int, torch.Tensor]]] = defaultdict(deque)
        self.rounds: dict[tuple[Any, ...], dict[int, tuple[int, Any]]] = {}
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
        self._expected: dict[int, int] = {}
        self._counts: dict[tuple[int, ...], int] = defaultdict(int)

    def prepare(self, meetings: dict[tuple[int, ...], int]) -> None:
        pass

    def expect(self, row: int, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> None:
        self._expected[row] = source

    def send(self, row: int, tensor: torch.Tensor, target: int) -> None:
        hub = self.hub
        with hub.changed:
            box = hub.letters[self.rank, target]
            letter = (row, tensor.clone())
            box.append(letter)
            hub.changed.notify_all()
            if hub.strict:
                hub.wait(lambda: all(held is not letter for held in box), f"rank {self.rank} sends task {row}")

    def receive(self, row: int) -> Pending:
        if not self.hub.strict:
            return lambda: self._take(row)
        tensor = self._take(row)
        return lambda: tensor

    def _take(self, row: int) -> torch.Tensor:
        hub, source = self.hub, self._expected.pop(row)
        with hub.changed:
            box = hub.letters[source, self.rank]
            if hub.strict:
                hub.wait(lambda: bool(box), f"rank {self.rank} receives task {row}")
                number, tensor = box.popleft()
                if number != row:
                    raise RankError(f"rank {self.rank} waits for task {row}, but rank {source} sends task {number}")
            else:
                hub.wait(lambda: any(n == row for n, _ in box), f"rank {self.rank} receives task {row}")
                letter = next(letter for letter in box if letter[0] == row)
                box.remove(letter)
                tensor = letter[1]
            hub.changed.notify_all()
        return tensor

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        shares = self._round(ranks, row, tensor.detach().clone())
        total: torch.Tensor = shares[0].clone()
        for share in shares[1:]:
            total += share
        return lambda: total

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def exchange(self, value: Any) -> list[Any]:
        return self._round(tuple(range(self.size)), -1, value)

    def fail(self, reason: str) -> None:
        with self.hub.changed:
            self.hub.failure = self.hub.failure or (self.rank, reason)
            self.hub.changed.notify_all()

    def _round(self, ranks: tuple[int, ...], row: int, value: Any) -> list[Any]:
        """Meet the other ranks of a group and get everyone's value, by rank."""
        hub = self.hub
        key = (*ranks, "round", self._counts[ranks])
        self._counts[ranks] += 1
        with hub.changed:
            shares = hub.rounds.setdefault(key, {})
            shares[self.rank] = (row, value)
            hub.changed.notify_all()
            hub.wait(lambda: len(shares) == len(ranks), f"rank {self.rank} meets {ranks} for task {row}")
            rows = {number for number, _ in shares.values()}
            if len(rows) > 1:
                raise RankError(f"ranks {ranks} meet for different tasks: {sorted(rows)}")
            hub.taken[key] = hub.taken.get(key, 0) + 1
            if hub.taken[key] == len(ranks):
                del hub.rounds[key], hub.taken[key]
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
            transport.fail(str(error) or type(error).__name__)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors and hub.failure is not None:
        raise errors.get(hub.failure[0]) or next(iter(errors.values()))
    return [results[rank] for rank in range(num_ranks)]
