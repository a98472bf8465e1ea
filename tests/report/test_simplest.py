"""The simplest strategy within an error: it stays within it, and is data parallelism where that does."""

from __future__ import annotations

import pytest

import soapstone as ss
from soapstone.report import simplest_within
from tests.support.models import CASES

TOPOLOGY = ss.Topology.parse("p100:1x4")


@pytest.mark.parametrize("name", ["mlp", "lstm"])
@pytest.mark.parametrize("error", [0.0, 0.05, 0.2, 1.0])
def test_it_stays_within_the_error(name: str, error: float) -> None:
    graph = ss.capture(CASES[name].workload())
    best = ss.search(graph, TOPOLOGY, budget=None, proposals=300).strategy
    ours = ss.simulate(graph, TOPOLOGY, best)
    found = simplest_within(ours, error)
    assert found.simulation.makespan_ns <= ours.makespan_ns * (1 + error)
    data = ss.baselines.data_parallel(graph, TOPOLOGY)
    differing = [op.name for op in graph.ops if found.simulation.strategy[op.name] != data[op.name]]
    assert bool(found.kept) == bool(differing)
    assert all(found.simulation.strategy[name] in (best[name], data[name]) for name in best)


def test_data_parallelism_comes_first() -> None:
    graph = ss.capture(CASES["mlp"].workload())
    ours = ss.simulate(graph, TOPOLOGY, ss.baselines.random(graph, TOPOLOGY, seed=0))
    found = simplest_within(ours, 1e3)
    assert (found.name, found.kept) == ("data parallelism", ())
    assert found.simulation.strategy == ss.baselines.data_parallel(graph, TOPOLOGY)
    itself = simplest_within(found.simulation)
    assert (itself.name, itself.taken_back) == ("data parallelism", 0)
