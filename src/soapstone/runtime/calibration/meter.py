"""Seconds of single messages and sums, with this runtime's own transport.

Each pair has the line to itself: a message there and back gives its time, a burst of them what each costs the next. A
GPU's host launches messages and goes on: what it takes for that is told apart from what the message takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import torch

from ..transports import Incoming, Outgoing, Pair, Pending, Transport, carried

KIB, MIB = 1 << 10, 1 << 20
SMALL, LARGE = KIB, 16 * MIB
MESSAGES = (SMALL, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, LARGE)
SUMS = (SMALL, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, LARGE, 64 * MIB, 128 * MIB)  # gradients are large
BURST = 16
WARM = 1  # rounds that do not count


@carried
class Spent(NamedTuple):
    """Seconds until something was done, and of the thread that issued it."""

    wall: float
    thread: float


def rounds_of(size: int) -> int:
    return 20 if size < MIB else 6 if size <= LARGE else 2


class Meter:
    """Every rank makes one and calls the same."""

    def __init__(self, transport: Transport, place: torch.device) -> None:
        self.transport, self.place = transport, place
        self.rank, self.everyone = transport.rank, tuple(range(transport.size))
        self._rows = count()

    def one_way(self, a: int, b: int, size: int) -> float:
        """Of a message between two ranks, beyond what its host takes to launch it."""
        return self._typical([self._there_and_back(a, b, size, 1) for _ in self._rounds(size)]) / 2

    def overhead(self, a: int, b: int) -> float:
        """What each small message of a burst adds."""
        burst, single = (
            self._typical([self._there_and_back(a, b, SMALL, n) for _ in self._rounds(SMALL)]) for n in (BURST, 1)
        )
        return max((burst - single) / (BURST - 1), 0.0)

    def rate_together(self, messages: Sequence[Pair], size: int) -> float:
        """Bytes/s of these messages together, each from its first rank to its second, all sent at once."""
        tensor = torch.zeros(size // 4, device=self.place)
        found = self.timed(lambda: self._begin_round(messages, tensor), rounds_of(size))
        slowest = max(wall - self._launched(thread) for wall, thread in self.transport.exchange(found))
        return float(len(messages) * size / max(slowest, 1e-9))

    def _begin_round(self, messages: Sequence[Pair], tensor: torch.Tensor) -> Pending:
        """One message of each of these (source, target), as one round."""
        numbered = [(next(self._rows), a, b) for a, b in messages]
        outgoing = [Outgoing(row, b, tensor) for row, a, b in numbered if a == self.rank]
        incoming = [Incoming(row, a, tuple(tensor.shape), tensor.dtype) for row, a, b in numbered if b == self.rank]
        pending = self.transport.round(numbered[0][0], outgoing, incoming)

        def wait() -> torch.Tensor:
            for each in pending:
                each()
            self.transport.finish()
            return tensor

        return wait

    def all_reduce(self, groups: Sequence[tuple[int, ...]], size: int) -> float:
        """Seconds of an all-reduce in each of these disjoint groups at once, with all members waiting: those of the
        slowest group, without the time that its host takes to launch it."""
        tensor = torch.zeros(size // 4, device=self.place)
        rounds = rounds_of(size)
        own = next((ranks for ranks in groups if self.rank in ranks), None)
        found = self.idle(rounds) if own is None else self.timed(lambda: self.begin_sum(tensor, own), rounds)
        return float(max(wall - self._launched(thread) for wall, thread in self.transport.exchange(found)))

    def thread_of_sum(self) -> float:
        """Seconds of the thread that takes part in a small all-reduce."""
        tensor = torch.zeros(SMALL // 4, device=self.place)
        found = self.timed(lambda: self.begin_sum(tensor), rounds_of(SMALL))
        return float(max(each.thread for each in self.transport.exchange(found)))

    def begin_sum(self, tensor: torch.Tensor, ranks: tuple[int, ...] | None = None) -> Pending:
        return self.transport.all_reduce(next(self._rows), tensor, self.everyone if ranks is None else ranks)

    def timed(self, act: Callable[[], Pending | None], rounds: int) -> Spent:
        """What `act` begins, until it is done. A GPU's host waits for nothing, so that the clock tells what the thread
        took; on a CPU it may wait for other ranks, so that what it computed tells."""
        thread_time = time.perf_counter if self.place.type == "cuda" else time.thread_time
        walls, threads = [], []
        for _ in range(rounds + WARM):
            self.meet()
            start, begun = time.perf_counter(), thread_time()
            pending = act()
            threads.append(thread_time() - begun)
            if pending is not None:
                pending()
            self.wait()
            if self.place.type == "cpu":  # also what it computed while it waited
                threads[-1] = thread_time() - begun
            walls.append(time.perf_counter() - start)
        return Spent(self._typical(walls), self._typical(threads))

    def idle(self, rounds: int) -> Spent:
        """Of a rank that takes no part: it meets the others, and leaves a number to what they begin."""
        for _ in range(rounds + WARM):
            self.meet()
            next(self._rows)
        return Spent(0.0, 0.0)

    def meet(self) -> None:
        self.transport.all_reduce(next(self._rows), torch.zeros(1, device=self.place), self.everyone)()
        self.wait()

    def wait(self) -> None:
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)

    def _launched(self, thread: float) -> float:
        return thread if self.place.type == "cuda" else 0.0

    def _rounds(self, size: int) -> range:
        self.meet()
        return range(rounds_of(size) + WARM)

    @staticmethod
    def _typical(seconds: list[float]) -> float:
        """The lower quartile: what else the machine does only ever adds."""
        return statistics.quantiles(seconds[WARM:], n=4, method="inclusive")[0]

    def _there_and_back(self, a: int, b: int, size: int, messages: int) -> float:
        """From a's first of some messages to b until b's answer, of the same size where there is one."""
        rows = [next(self._rows) for _ in range(messages + 1)]
        if self.rank not in (a, b):
            return 0.0
        other, answer = b if self.rank == a else a, size if messages == 1 else SMALL
        there, back = torch.zeros(size // 4, device=self.place), torch.zeros(answer // 4, device=self.place)
        start = time.perf_counter()
        if self.rank == a:
            self._send([(row, there) for row in rows[:-1]], other)
            start += self._launched(time.perf_counter() - start)
            self._receive(rows[-1:], back, other)
        else:
            self._receive(rows[:-1], there, other)
            self._send([(rows[-1], back)], other)
        self.transport.finish()
        self.wait()
        return time.perf_counter() - start

    def _send(self, messages: list[tuple[int, torch.Tensor]], target: int) -> None:
        """In one round, which bears the number of its first message."""
        outgoing = [Outgoing(row, target, tensor) for row, tensor in messages]
        self.transport.round(outgoing[0].row, outgoing, [])

    def _receive(self, rows: list[int], like: torch.Tensor, source: int) -> None:
        incoming = [Incoming(row, source, tuple(like.shape), like.dtype) for row in rows]
        for pending in self.transport.round(rows[0], [], incoming):
            pending()
