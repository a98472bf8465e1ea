"""The pipeline whose microbatches are best."""

from __future__ import annotations

from ..baselines import pipelines
from ..graph import OperatorGraph
from ..topology import Topology
from .simulation import Simulation, simulate
from .training import Training


def fastest_pipeline(graph: OperatorGraph, topology: Topology, training: Training) -> Simulation:
    """The `pipeline` baseline with the number of microbatches that is fastest, of those that fit where any does."""
    played = (simulate(graph, topology, each, training=training) for each in pipelines(graph, topology))
    return min(played, key=lambda sim: (not sim.fits, sim.makespan))
