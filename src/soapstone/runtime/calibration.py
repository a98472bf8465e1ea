"""Measure how the ranks' messages travel, with this runtime's own transport, and write it down as a topology.

Each pair has the line to itself: a message there and back gives its time, a burst of them what each costs the next, two
sizes the bandwidth. A chain of tiny ops on two ranks in turns, against one rank alone, gives what a message costs the
threads at its ends, whose segments begin and end there, and on CPUs how long it keeps the next op waiting. All ranks
together give the bandwidth of an all-reduce, what it costs their threads, and how much of it compute hides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, count
from typing import NamedTuple

import torch
from torch import nn

from ..strategy import Configuration, Strategy
from ..topology import Device, Link, Topology, kind_of
from ..tracing import Workload, capture
from .launch import parallelize
from .transports import Incoming, Outgoing, Transport

SMALL, MIDDLE, LARGE, HUGE = 1 << 10, 1 << 20, 1 << 24, 1 << 26  # bytes; gradients are often beyond any cache
ROUNDS = {SMALL: 100, MIDDLE: 20, LARGE: 10, HUGE: 5}
BURST = 16
CHAIN = 16  # ops
WARM = 3  # rounds that do not count
_Pair = tuple[int, int, dict[int, float], float]  # two ranks, seconds one way by size, overhead
Progress = Callable[[float, str], None]


class _Message(NamedTuple):
    """Seconds that a small message takes in a program, those of the threads at both its ends, and of the thread that
    takes part in a small sum."""

    wall: float
    thread: float
    sum: float


@dataclass(frozen=True)
class Calibration:
    """A topology as it was measured, and the seconds of an all-reduce of each size among all ranks."""

    topology: Topology
    all_reduce: dict[int, float]
    exposed: float  # the share of an all-reduce that compute beside it does not hide


class Calibrator:
    """Every rank makes one and calls `run`."""

    def __init__(
        self, transport: Transport, place: torch.device, progress: Progress = lambda share, what: None
    ) -> None:
        self.transport, self.place, self.progress = transport, place, progress
        self.rank, self.everyone = transport.rank, tuple(range(transport.size))
        self._rows = count()

    def run(self) -> Calibration:
        devices = tuple(self.transport.exchange(_device(self.rank, self.transport.size, self.place)))
        pairs = list(combinations(self.everyone, 2))
        self.transport.open(pairs, {self.everyone: 1})
        rows = []
        for done, (a, b) in enumerate(pairs):
            self.progress(done / (len(pairs) + 2), f"ranks {a} and {b}")
            rows.append(self._pair(a, b))
        self.progress(len(pairs) / (len(pairs) + 2), "an all-reduce")
        if not pairs:
            return Calibration(Topology(devices, ()), {}, 0.0)
        sums = {size: self._all_reduce(size) for size in (SMALL, MIDDLE, HUGE)}
        exposed, found, message = self._exposed(), self.transport.exchange(rows), self._message()
        devices = tuple(self._with_thread(device, message) for device in devices)
        links = tuple(self._link(devices, found[a][i], sums, exposed, message) for i, (a, _) in enumerate(pairs))
        return Calibration(Topology(devices, links), sums, exposed)

    def _with_thread(self, device: Device, message: _Message) -> Device:
        end, total = round(message.thread / 2 * 1e9), round(message.sum * 1e9)
        return replace(device, send=end, receive=end, sum=total)

    def _link(
        self, devices: tuple[Device, ...], pair: _Pair, sums: dict[int, float], exposed: float, message: _Message
    ) -> Link:
        a, b, one_way, overhead = pair
        bandwidth = (LARGE - MIDDLE) / max(one_way[LARGE] - one_way[MIDDLE], 1e-9)
        latency = max(one_way[SMALL] - overhead, 0.0)
        if self.place.type == "cpu":  # in a program it takes longer: threads stop and start
            latency = max(latency, message.wall - max(overhead, message.thread / 2))
        size = len(self.everyone)
        per_byte = max(sums[HUGE] - sums[MIDDLE], 1e-9) / (HUGE - MIDDLE)
        return Link(
            devices[a].name,
            devices[b].name,
            float(round(bandwidth)),
            latency=round(latency * 1e9),
            overhead=round(overhead * 1e9),
            overlap=exposed < 0.5,
            summing=float(round(2 * (size - 1) / size / per_byte)),
        )

    def _pair(self, a: int, b: int) -> _Pair:
        self._meet()
        one_way = {}
        for size in (SMALL, MIDDLE, LARGE):
            one_way[size] = _typical([self._burst(a, b, size, 1) for _ in range(ROUNDS[size] + WARM)]) / 2
        bursts = _typical([self._burst(a, b, SMALL, BURST) for _ in range(ROUNDS[SMALL] + WARM)])
        overhead = max((bursts - 2 * one_way[SMALL]) / (BURST - 1), 0.0)
        return a, b, one_way, min(overhead, one_way[SMALL])

    def _burst(self, a: int, b: int, size: int, messages: int) -> float:
        """Seconds from a's first of some messages to b until b's answer, of the same size where there is one."""
        rows = [next(self._rows) for _ in range(messages + 1)]
        if self.rank not in (a, b):
            return 0.0
        other, answer = b if self.rank == a else a, size if messages == 1 else SMALL
        there, back = torch.zeros(size // 4, device=self.place), torch.zeros(answer // 4, device=self.place)
        start = time.perf_counter()
        if self.rank == a:
            self._send([(row, there) for row in rows[:-1]], other)
            self._receive(rows[-1:], back, other)
        else:
            self._receive(rows[:-1], there, other)
            self._send([(rows[-1], back)], other)
        self.transport.finish()
        _wait(self.place)
        return time.perf_counter() - start

    def _send(self, messages: list[tuple[int, torch.Tensor]], target: int) -> None:
        """In one round, which bears the number of its first message."""
        outgoing = [Outgoing(row, target, tensor) for row, tensor in messages]
        self.transport.round(outgoing[0].row, outgoing, [])

    def _receive(self, rows: list[int], like: torch.Tensor, source: int) -> None:
        incoming = [Incoming(row, source, tuple(like.shape), like.dtype) for row in rows]
        for pending in self.transport.round(rows[0], [], incoming):
            pending()

    def _message(self) -> _Message:
        """What a small message adds to a step: a chain of ops on two ranks in turns, against one rank alone."""
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(CHAIN))).to(self.place)
        work = Workload(model, (torch.ones(8, 8, device=self.place),), loss=_total)
        graph = capture(work.on(torch.device("cpu")))
        work.on(self.place)
        pair = Topology.parse("cpu:1x2")
        wall, thread = list[float](), list[list[float]]()  # by chain; of the two ranks
        for turns in (False, True):
            devices = {op.name: (i % 2 if turns else 0,) for i, op in enumerate(graph.ops)}
            strategy = Strategy(graph, pair, {name: Configuration({}, where) for name, where in devices.items()})
            parallel = parallelize(
                work, graph, pair, strategy, ranks=self.everyone[:2], transport=self.transport, device=self.place
            )
            times = self._timed_with_thread(partial(parallel.step, *work.batch), ROUNDS[MIDDLE])
            both = self.transport.exchange(times)[:2]
            wall.append(max(each[0] for each in both))
            thread.append([each[1] for each in both])
        boundaries = len(graph.ops) - 1  # each is crossed forward and backward; a rank sends once and receives once
        spent = max(statistics.mean(thread[1]) - sum(thread[0]) / 2, 0.0) / boundaries
        return _Message(max(wall[1] - wall[0], 0.0) / (2 * boundaries), spent, self._sum_thread())

    def _sum_thread(self) -> float:
        """Seconds of the thread that takes part in a small all-reduce."""
        tensor = torch.zeros(SMALL // 4, device=self.place)
        act = lambda: self.transport.all_reduce(next(self._rows), tensor, self.everyone)()  # noqa: E731
        return float(max(each[1] for each in self.transport.exchange(self._timed_with_thread(act, ROUNDS[SMALL]))))

    def _timed_with_thread(self, act: Callable[[], object], rounds: int) -> tuple[float, float]:
        """Seconds until it is done, and of this thread. A GPU's host waits for nothing, so that the clock tells; on a
        CPU the thread may wait for other ranks, so that what it computed tells."""
        thread_time = time.perf_counter if self.place.type == "cuda" else time.thread_time
        walls, threads = [], []
        for _ in range(rounds + WARM):
            self._meet()
            start, begun = time.perf_counter(), thread_time()
            act()
            threads.append(thread_time() - begun)
            _wait(self.place)
            walls.append(time.perf_counter() - start)
        return _typical(walls), _typical(threads)

    def _all_reduce(self, size: int) -> float:
        """The median seconds, of the slowest rank, of an all-reduce."""
        tensor = torch.zeros(size // 4, device=self.place)

        def act() -> None:
            self.transport.all_reduce(next(self._rows), tensor, self.everyone)()
            _wait(self.place)

        return float(max(self.transport.exchange(self._timed(act, ROUNDS[size]))))

    def _exposed(self) -> float:
        """Compute alone, an all-reduce alone, and both at once: the share that is not hidden."""
        tensor, matrix = torch.zeros(LARGE // 4, device=self.place), torch.ones(256, 256, device=self.place)

        def compute(times: int) -> None:
            for _ in range(times):
                torch.mm(matrix, matrix)
            _wait(self.place)

        def move() -> None:
            self.transport.all_reduce(next(self._rows), tensor, self.everyone)()
            _wait(self.place)

        def both() -> None:
            pending = self.transport.all_reduce(next(self._rows), tensor, self.everyone)
            compute(times)
            pending()
            _wait(self.place)

        moving = self._timed(move, ROUNDS[LARGE])
        times = self.transport.exchange(max(round(2 * moving / self._timed(lambda: compute(1), 20)), 1))[0]
        computing, together = self._timed(lambda: compute(times), ROUNDS[LARGE]), self._timed(both, ROUNDS[LARGE])
        shares = self.transport.exchange((together - computing) / moving)
        return float(min(max(statistics.mean(shares), 0.0), 1.0))

    def _meet(self) -> None:
        self.transport.all_reduce(next(self._rows), torch.zeros(1, device=self.place), self.everyone)()

    def _timed(self, act: Callable[[], None], rounds: int) -> float:
        found = []
        for _ in range(rounds + WARM):
            self._meet()
            start = time.perf_counter()
            act()
            found.append(time.perf_counter() - start)
        return _typical(found)


def _typical(seconds: list[float]) -> float:
    """The lower quartile: what else the machine does only ever adds."""
    return statistics.quantiles(seconds[WARM:], n=4)[0]


def _total(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def _device(rank: int, size: int, place: torch.device) -> Device:
    """What a rank computes on; ranks of one machine share its memory."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    node = int(os.environ.get("GROUP_RANK", "0"))
    if place.type == "cuda":
        found = torch.cuda.get_device_properties(place)
        sharing = max(-(-local // max(torch.cuda.device_count(), 1)), 1)
        return Device(f"gpu{rank}", kind_of(found.name), node, found.total_memory // sharing)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(f"cpu{rank}", "cpu", node, memory // local)
