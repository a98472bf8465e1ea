"""The least recomputation that makes a strategy fit.

A model is cut where a single tensor leads on: after each half of a transformer's block, say. What lies between two
cuts is a run. The ops of a run are recomputed, all but its last, whose output is kept; runs that keep the most bytes
for the time that they take before others, and of those that are alike the first, since what they make lies there
longest. Where all runs are not enough, several in a row become one, and less is kept between them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from ..graph import OperatorGraph
from .simulation import Simulation, simulate
from .tasks import FORWARD

LONGER = (2, 4, 8)  # runs in one


def least_recomputed(simulation: Simulation) -> Simulation:
    """The same strategy with as few runs recomputed as fit into memory; itself where it fits, or where none does."""
    if simulation.fits or not _may_fit(simulation):
        return simulation
    runs = _best_first(simulation)
    if not runs:
        return simulation
    found: dict[int, Simulation] = {}

    def fits(count: int) -> bool:
        if count not in found:
            found[count] = _recomputed(simulation, [op for run in runs[:count] for op in run])
        return found[count].fits

    if fits(len(runs)):
        return found[bisect_left(range(len(runs)), True, key=fits)]
    longer = (_recomputed(simulation, _in_long_runs(simulation.graph, count)) for count in LONGER)
    return next((each for each in longer if each.fits), simulation)


def _in_long_runs(graph: OperatorGraph, count: int) -> list[int]:
    """The ops of so many runs in a row, with all but the last of the tensors between them."""
    runs = runs_of(graph)
    ends = {run[-1] + 1 for run in runs[count - 1 :: count]}
    last = runs[-1][-1] + 1
    return [i for i, op in enumerate(graph.ops[:last]) if op.backward and i not in ends]


def _may_fit(simulation: Simulation) -> bool:
    """Whether there is room for what stays, whatever is recomputed."""
    memory = simulation.memory
    stays = memory.parameters + memory.states + memory.workspace
    return all(size <= device.memory for size, device in zip(stays, simulation.topology.devices))


def _recomputed(simulation: Simulation, ops: list[int]) -> Simulation:
    graph, strategy = simulation.graph, simulation.strategy
    names = [graph.ops[op].name for op in ops]
    changed = strategy.replace({name: replace(strategy[name], recompute=True) for name in names})
    return simulate(graph, simulation.topology, changed, training=simulation.training)


def _best_first(simulation: Simulation) -> list[list[int]]:
    """The runs by what they keep on the fullest device, for the time of their forwards."""
    graph, native = simulation.graph, simulation.native
    forwards = (native.kinds == FORWARD)[native.hold_rows]
    times = np.bincount(native.ops[native.hold_rows][forwards], native.hold_durations[forwards], len(graph.ops))

    kept = simulation.fullest.ops

    def worth(run: list[int]) -> float:
        return sum(kept.get(op, 0) for op in run) / max(float(times[run].sum()), 1.0)

    return sorted(runs_of(graph), key=worth, reverse=True)


def runs_of(graph: OperatorGraph) -> list[list[int]]:
    """The ops of each run that may be recomputed, in order. The last run, which backward begins with, is none."""
    last_reader = {operand.tensor: index for index, op in enumerate(graph.ops) for operand in op.inputs}
    runs: list[list[int]] = []
    run: list[int] = []
    open_until: dict[int, int] = {}  # by tensor that is still read: its last reader
    for index, op in enumerate(graph.ops):
        open_until = {tensor: reader for tensor, reader in open_until.items() if reader > index}
        read = [o.tensor for o in op.outputs if graph.tensors[o.tensor].grad and last_reader.get(o.tensor, -1) > index]
        is_cut = op.backward and not open_until and len(read) == 1
        open_until |= {tensor: last_reader[tensor] for tensor in read}
        if is_cut:
            runs += [run] if run else []
            run = []
        elif op.backward:
            run.append(index)
    return runs
