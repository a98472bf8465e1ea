"""Pipelines whose stages take about the same time, with the microbatches that are best."""

from __future__ import annotations

import numpy as np

from ..baselines import pipelines
from ..graph import OperatorGraph
from ..topology import Topology
from .simulation import Simulation, simulate
from .tasks import BACKWARD, FORWARD
from .training import Training


def fastest_pipeline(graph: OperatorGraph, topology: Topology, training: Training) -> Simulation:
    """The `pipeline` baseline, with the number of microbatches that is fastest of those that fit, where any does."""
    usual = simulate(graph, topology, pipelines(graph, topology)[-1], training=training)
    chosen = pipelines(graph, topology, op_times(usual))
    played = (simulate(graph, topology, each, training=training) for each in chosen)
    return min(played, key=lambda sim: (not sim.fits, sim.makespan))


def op_times(sim: Simulation) -> list[float]:
    """What each op takes of a device, forward and backward, in ns."""
    native = sim.native
    computing = np.isin(native.kinds, (FORWARD, BACKWARD))[native.hold_rows]
    ops, durations = native.ops[native.hold_rows][computing], native.hold_durations[computing]
    total = np.bincount(ops, durations, len(sim.graph.ops))
    return [float(ns) / len(set(sim.strategy[op.name].devices)) for ns, op in zip(total, sim.graph.ops)]
