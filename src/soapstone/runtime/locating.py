"""Name the first op whose output differs under a strategy from what one device makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import RankError
from ..graph import OperatorGraph
from ..simulator import simulate
from ..strategy import Configuration, Strategy
from ..topology import Topology
from ..tracing import Workload
from .batch import BatchCheck
from .draws import CounterDraws
from .evaluation import gathered
from .execute import Executor
from .iteration import evaluate
from .plan import Plan, open_connections
from .store import Store
from .transports import Transport, alone
from .weights import state_of


@dataclass(frozen=True)
class Difference:
    """What differs most, by how much of its largest element."""

    what: str
    error: float


def difference(found: torch.Tensor, wanted: torch.Tensor, floor: float = 0.0) -> float:
    """max|a - b| / max|b|; infinite where one is not finite and the other is not the same."""
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found.cpu(), wanted.cpu()) else float("inf")
    a, b = found.detach().double().cpu(), wanted.detach().double().cpu()
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not torch.equal(torch.nan_to_num(a[~finite], nan=1e300), torch.nan_to_num(b[~finite], nan=1e300)):
        return float("inf")
    a, b = a[finite], b[finite]
    if not b.numel():
        return 0.0
    return float((a - b).abs().max()) / max(float(b.abs().max()), floor, 1e-300)


def first_difference(
    work: Workload, graph: OperatorGraph, strategy: Strategy, batch: Sequence[torch.Tensor], transport: Transport,
    place: torch.device, tolerance: float,
) -> Difference | None:  # fmt: skip
    """Run forward under the strategy and on one device, and name the first op whose output differs. Every rank calls
    this and gets the same answer."""
    if transport.size != strategy.topology.num_devices:
        raise RankError("a check needs one rank for each device of the topology")
    one = Topology(strategy.topology.devices[:1], ())
    whole = Strategy(graph, one, {op.name: Configuration({}, (0,)) for op in graph.ops})
    uncut = Strategy(graph, strategy.topology, dict(strategy))  # forward of all at once says the same
    ours, theirs = _Forward(work, uncut, transport, place), _Forward(work, whole, alone(), place)
    ours.run(batch)
    theirs.run(batch)
    for op in graph.ops:
        for operand in op.outputs:
            error = difference(ours.tensor(operand.tensor), theirs.tensor(operand.tensor))
            if error > tolerance:
                return Difference(op.name, error)
    return None


class _Forward:
    """One forward that keeps what every op makes."""

    def __init__(self, work: Workload, strategy: Strategy, transport: Transport, place: torch.device) -> None:
        simulation = simulate(strategy.graph, strategy.topology, strategy)
        order = transport.exchange(simulation.order)[0]
        plan = Plan(simulation, order, transport.size, keep_all=True)
        store = Store(simulation, transport.rank, state_of(work.model).items(), place)
        ranks = range(transport.size)
        draws = CounterDraws(0, place)
        self._executor = Executor(plan, transport.rank, ranks, store, transport, draws, place, training=False)
        open_connections(plan, ranks, transport)
        self._check = BatchCheck(strategy.graph, self._executor.read)

    def run(self, batch: Sequence[torch.Tensor]) -> None:
        self._kept = evaluate(self._executor, self._check.cut(batch, self._executor.place)[0])

    def tensor(self, number: int) -> torch.Tensor:
        return gathered(self._executor, number, self._kept)
