"""What messages and iterations cost in a program of this runtime, whose segments begin and end with them.

A chain of tiny ops on two ranks in turns, against one rank alone, gives what a message costs the threads at its ends,
and on CPUs how long it keeps the next op waiting. Chains of two lengths on all ranks, without gradient sync, give what
an iteration costs besides its ops.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ...baselines import data_parallel
from ...graph import OperatorGraph
from ...strategy import Configuration, Strategy
from ...topology import Topology
from ...tracing import Workload, capture
from ..launch import parallelize
from ..transports import Pending
from .meter import MIB, Meter, Spent

CHAIN, SHORT = 16, 4  # ops
ROUNDS = 10
SIDE = 8
COPIED = 32 * MIB


class Message(NamedTuple):
    """Seconds that a small message takes in a program, and those of the threads at both its ends."""

    wall: float
    thread: float


class Programs:
    """Programs are made once, and run whenever they are asked for."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._place = meter, meter.place
        pair = Topology.parse("cpu:1x2")
        work, graph = self._chain(CHAIN, 1)
        self._boundaries = len(graph.ops) - 1  # each is crossed forward and backward
        self._alone, self._turns = (
            self._program(work, graph, pair, _placed(graph, pair, turns)) for turns in (False, True)
        )
        size = len(meter.everyone)
        everyone = Topology.parse(f"cpu:1x{size}")
        self._chains = {}
        for length in (SHORT, CHAIN):
            work, graph = self._chain(length, size)
            self._chains[length] = self._program(work, graph, everyone, data_parallel(graph, everyone), sync=False)

    def message(self) -> Message:
        """What a small message adds to a step. A rank sends once and receives once at a boundary."""
        alone, turns = self._both(self._alone), self._both(self._turns)
        wall = max(each.wall for each in turns) - max(each.wall for each in alone)
        thread = statistics.mean(each.thread for each in turns) - sum(each.thread for each in alone) / 2
        return Message(max(wall, 0.0) / (2 * self._boundaries), max(thread, 0.0) / self._boundaries)

    def iteration(self) -> float:
        """What an iteration costs a rank besides its ops: of chains of two lengths, what no op is left of, and no
        loss."""
        found = {length: self._slowest(program) for length, program in self._chains.items()}
        per_op = (found[CHAIN] - found[SHORT]) / (CHAIN - SHORT)
        return max(found[SHORT] - SHORT * per_op - self._loss(), 0.0)

    def copying(self) -> float:
        """Bytes/s at which gradients are copied to one place, while all ranks do so."""
        halves = [torch.ones(COPIED // 8, device=self._place) for _ in range(2)]
        found = self._meter.timed(lambda: _done(torch.cat(halves)), ROUNDS)
        return COPIED / float(max(each.wall for each in self._meter.transport.exchange(found)))

    def exposed(self, size: int) -> float:
        """Compute alone, an all-reduce alone, and both at once: the share that is not hidden."""
        meter, rounds = self._meter, ROUNDS // 2
        tensor = torch.zeros(size // 4, device=self._place)
        matrix = torch.ones(256, 256, device=self._place)

        def compute(times: int) -> None:
            for _ in range(times):
                torch.mm(matrix, matrix)

        def both() -> Pending:
            pending = meter.begin_sum(tensor)
            compute(times)
            return pending

        moving = meter.timed(lambda: meter.begin_sum(tensor), rounds).wall
        times = meter.transport.exchange(max(round(2 * moving / meter.timed(lambda: compute(1), ROUNDS).wall), 1))[0]
        computing, together = meter.timed(lambda: compute(times), rounds).wall, meter.timed(both, rounds).wall
        shares = meter.transport.exchange((together - computing) / moving)
        return float(min(max(statistics.mean(shares), 0.0), 1.0))

    def _both(self, program: partial[torch.Tensor]) -> list[Spent]:
        return self._meter.transport.exchange(self._meter.timed(lambda: _done(program()), ROUNDS))[:2]

    def _slowest(self, program: partial[torch.Tensor]) -> float:
        """Of the threads, which on CPUs also wait for one another."""
        found = self._meter.timed(lambda: _done(program()), ROUNDS)
        return float(max(self._meter.transport.exchange(found.thread if self._place.type == "cuda" else found.wall)))

    def _loss(self) -> float:
        outputs = torch.ones(SIDE, SIDE, device=self._place, requires_grad=True)
        targets = torch.zeros(SIDE, dtype=torch.long, device=self._place)
        act = lambda: _done(F.cross_entropy(outputs, targets).backward())  # type: ignore[no-untyped-call]  # noqa: E731
        found = self._meter.timed(act, ROUNDS)
        return float(max(self._meter.transport.exchange(found.thread if self._place.type == "cuda" else found.wall)))

    def _chain(self, length: int, parts: int) -> tuple[Workload, OperatorGraph]:
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(length)))
        targets = torch.zeros(parts * SIDE, dtype=torch.long)
        work = Workload(model, (torch.ones(parts * SIDE, SIDE),), loss=F.cross_entropy, targets=(targets,))
        graph = capture(work)
        return work.on(self._place), graph

    def _program(
        self, work: Workload, graph: OperatorGraph, topology: Topology, strategy: Strategy, sync: bool = True
    ) -> partial[torch.Tensor]:
        ranks = self._meter.everyone[: topology.num_devices]
        parallel = parallelize(
            work, graph, topology, strategy, ranks=ranks, transport=self._meter.transport, device=self._place,
            in_place=False,
        )  # fmt: skip
        return partial(parallel.step, *work.batch, sync=sync)


def _placed(graph: OperatorGraph, pair: Topology, turns: bool) -> Strategy:
    """Every op whole: on the first device, or on the two in turns."""
    places = {op.name: Configuration({}, (i % 2 if turns else 0,)) for i, op in enumerate(graph.ops)}
    return Strategy(graph, pair, places)


def _done(_: object) -> None:
    """Nothing is left to wait for."""
