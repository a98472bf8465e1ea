"""Which strategies are worth running: the search's best, others that differ and are predicted to be near, the simplest
within the known error of predictions, the baselines, and what was the best before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..baselines import BASELINES, UNSHARDED
from ..graph import OperatorGraph
from ..report import KNOWN_ERROR, simplest_within
from ..searching import INITIAL, Progress, search
from ..simulator import Simulation, Training, simulate
from ..strategy import Configuration, Strategy
from ..topology import Topology

MOST = 8  # candidates
MATERIAL = 0.02  # the share of a model's flops that is configured otherwise in a strategy that differs
SAME_TIME = 0.002  # predictions this close, with the same degrees, are one strategy on other devices
OTHER_TIME = 0.02  # predictions this far apart differ, however little is configured otherwise
FAR = 2.0  # a baseline that is predicted to take so many times the best is not tried
FIRST_SHARE = 0.7  # of the budget, for the search from all starts; the others share the rest

Packed = tuple[str, int, list[Configuration], float, tuple[int, ...]]


@dataclass(frozen=True)
class Candidate:
    """A strategy with its predicted seconds, and the bytes that each device holds at most."""

    name: str
    strategy: Strategy
    predicted: float
    peak: tuple[int, ...]

    @classmethod
    def of(cls, name: str, simulation: Simulation) -> Candidate:
        return cls(name, simulation.strategy, simulation.makespan, tuple(simulation.peak_memory))

    def packed(self) -> Packed:
        """What another rank needs to make the same."""
        strategy = self.strategy
        return self.name, strategy.microbatches, list(strategy.values()), self.predicted, self.peak

    @classmethod
    def unpacked(cls, graph: OperatorGraph, topology: Topology, packed: Packed) -> Candidate:
        name, microbatches, rows, predicted, peak = packed
        configurations = {op.name: row for op, row in zip(graph.ops, rows)}
        return cls(name, Strategy(graph, topology, configurations, microbatches), predicted, peak)


def find_candidates(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training,
    budget: float,
    seed: int,
    starts: Sequence[Strategy] = (),
    progress: Callable[[Progress], None] = lambda _: None,
) -> tuple[list[Candidate], bool]:
    """Data parallelism first, then those that promise most; and whether Ctrl-C ended the search. Raises SoapstoneError
    where nothing fits into memory."""

    def played(strategy: Strategy) -> Simulation:
        return simulate(graph, topology, strategy, training=training)

    def searched(initial: Sequence[str | Strategy], share: float, number: int) -> tuple[Simulation, bool]:
        result = search(
            graph, topology, training=training, budget=share * budget, seed=seed + number, initial=initial,
            microbatches=1, progress=progress,
        )  # fmt: skip
        return played(result.strategy), result.interrupted

    uncut = [start for start in starts if start.microbatches == 1]
    best, stopped = searched((*INITIAL["soapstone"], *uncut), FIRST_SHARE, 0)
    rest: list[Simulation] = []
    for number, name in enumerate(UNSHARDED, 1):
        if not stopped:
            found, stopped = searched([name], (1 - FIRST_SHARE) / len(UNSHARDED), number)
            rest.append(found)
    rest.sort(key=lambda simulation: simulation.makespan_ns)
    baselines = {name: played(strategy) for name, strategy in _baselines(graph, topology).items()}
    near = {name: sim for name, sim in baselines.items() if sim.makespan_ns <= FAR * best.makespan_ns}
    named = [
        ("data", baselines["data"]),
        ("searched", best),
        *((f"before{f' {i}' if i > 1 else ''}", played(start)) for i, start in enumerate(starts, 1)),
        ("simplest", simplest_within(best, KNOWN_ERROR).simulation),
        ("simpler", simplest_within(best, KNOWN_ERROR / 2).simulation),
        *near.items(),
        *((f"searched {i}", sim) for i, sim in enumerate(rest, 2) if sim.makespan_ns <= FAR * best.makespan_ns),
    ]
    return distinct(Candidate.of(name, sim) for name, sim in named if sim.fits), stopped


def only_baselines(graph: OperatorGraph, topology: Topology, training: Training) -> list[Candidate]:
    """For want of time to search."""
    chosen = _baselines(graph, topology)
    found = {name: simulate(graph, topology, strategy, training=training) for name, strategy in chosen.items()}
    return distinct(Candidate.of(name, simulation) for name, simulation in found.items() if simulation.fits)


def _baselines(graph: OperatorGraph, topology: Topology) -> dict[str, Strategy]:
    """All that compute the same: batch norm takes the statistics of each microbatch."""
    made = {name: make(graph, topology) for name, make in BASELINES.items()}
    return {name: each for name, each in made.items() if each.microbatches == 1 or not graph.has_batch_norm}


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that differ materially from all before them."""
    found: list[Candidate] = []
    for candidate in candidates:
        if len(found) < MOST and all(_differ(candidate, other) for other in found):
            found.append(candidate)
    return found


def _differ(one: Candidate, other: Candidate) -> bool:
    """By what much of the model's compute is configured, or by something small that matters."""
    apart = abs(one.predicted / other.predicted - 1)
    if one.strategy.microbatches != other.strategy.microbatches:
        return apart > SAME_TIME
    ops = one.strategy.graph.ops
    pairs = [(op, one.strategy[op.name], other.strategy[op.name]) for op in ops]
    changed = [op for op, a, b in pairs if ((a.degrees != b.degrees) if apart < SAME_TIME else (a != b))]
    share = sum(op.flops for op in changed) / max(sum(op.flops for op in ops), 1)
    return bool(changed) and (share > MATERIAL or apart > OTHER_TIME)
