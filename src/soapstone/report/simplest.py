"""The simplest strategy that is predicted to be about as fast as another one.

Predictions are off by a known error, so among strategies that lie closer than that the simplest is the better bet: it
moves less, and what predictions miss (launches, small messages) mostly grows with what a strategy does otherwise than
data parallelism. That is the simplest of all. Where it is too slow, the choices that set the strategy apart from it are
taken back one after the other, always the one that adds least, for as long as the sum stays within the error.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..baselines import BASELINES
from ..simulator import Simulation, Simulator, simulate
from .choices import WORK, Groups, groups_of, largest, listed_layers, taken_back

# Between the mean errors of predictions with measured costs and calibrated links, 12 and 13% on 2 and 4 GPU ranks and
# 18% on 2 CPU ranks (docs/results/reality.md). Most of it is common to all strategies of a model, so that two which lie
# closer than this cannot be told apart for sure.
KNOWN_ERROR = 0.16


@dataclass(frozen=True)
class Simplest:
    """A strategy, played, and what is left in it of what sets the other apart from data parallelism."""

    simulation: Simulation
    kept: tuple[str, ...]  # layers
    taken_back: int  # choices

    @property
    def name(self) -> str:
        return "data parallelism" if not self.kept else f"data parallelism but for {listed_layers(list(self.kept))}"


def simplest_within(ours: Simulation, error: float = KNOWN_ERROR) -> Simplest:
    """The simplest strategy that is predicted to take no more than `error` longer than this one, and that fits into
    memory where this one does."""
    graph, topology, training = ours.graph, ours.topology, ours.training
    limit = int(ours.makespan_ns * (1 + error))
    data = simulate(graph, topology, BASELINES["data"](graph, topology), training=training)
    all_groups = groups_of(ours.strategy, data.strategy)
    if data.makespan_ns <= limit and (data.fits or not ours.fits):
        return Simplest(data, (), len(all_groups))
    groups = largest(ours.strategy, all_groups, max(1, int((WORK / len(ours.tasks)) ** 0.5)))
    simulator = Simulator(graph, topology, ours.strategy, training=training)
    left = _take_back(simulator, data, dict(groups), limit)
    found = simulator.result()
    if not found.fits and ours.fits:
        found, left = ours, groups
    kept = [graph.ops[i].layer for i in range(len(graph.ops)) if _differs(found, data, i)]
    return Simplest(found, tuple(dict.fromkeys(kept)), len(groups) - len(left))


def _take_back(simulator: Simulator, data: Simulation, groups: Groups, limit: int) -> Groups:
    """What is left when the cheapest choices are taken back; the simulator has the strategy then."""
    while groups:
        times = {}
        for key, ops in groups.items():
            makespan = simulator.propose(taken_back(data.strategy, ops), limit=limit)
            if makespan is not None:
                times[key] = makespan
                simulator.reject()
        if not times:
            break
        cheapest = min(times, key=lambda key: times[key])
        simulator.propose(taken_back(data.strategy, groups.pop(cheapest)))
        simulator.accept()
    return groups


def _differs(found: Simulation, data: Simulation, index: int) -> bool:
    name = found.graph.ops[index].name
    return found.strategy[name] != data.strategy[name]
