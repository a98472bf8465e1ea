"""Placement by reinforcement learning: whole layers, better and better, the same from the same seed."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest

import soapstone as ss
from soapstone.searching import Progress
from soapstone.searching.reinforce import _Trials, reinforce
from tests.support.chains import graph_of


def test_it_places_whole_layers_and_repeats_itself() -> None:
    graph, topology = graph_of("nmt"), ss.Topology.parse("k80:1x4")
    heard: list[Progress] = []
    found = reinforce(graph, topology, proposals=60, budget=None, seed=3, progress=heard.append)
    assert found.strategy == reinforce(graph, topology, proposals=60, budget=None, seed=3).strategy
    assert found.strategy != reinforce(graph, topology, proposals=60, budget=None, seed=4).strategy
    assert all(not found.strategy[op.name].degrees for op in graph.ops)
    cells: dict[str, set[tuple[int, ...]]] = {}
    for op in graph.ops:
        if op.parameters:
            cells.setdefault(op.layer, set()).add(found.strategy[op.name].devices)
    assert all(len(devices) == 1 for devices in cells.values())
    assert (found.proposals, heard[-1].proposals, heard[-1].share) == (60, 60, 1.0)
    assert found.makespan == ss.simulate(graph, topology, found.strategy).makespan
    times = [step.makespan for step in found.history]
    assert times == sorted(times, reverse=True)
    assert times[-1] == found.makespan


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The costs of all that is drawn from now on."""
    drawn: list[tuple[float, float]] = []
    costs = _Trials.costs

    def note(self: _Trials, placement: Sequence[int]) -> tuple[float, float]:
        drawn.append(costs(self, placement))
        return drawn[-1]

    monkeypatch.setattr(_Trials, "costs", note)
    return drawn


def test_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy draws at last is better than what it drew at first, not only the best of it."""
    graph, topology = graph_of("rnntc"), ss.Topology.parse("k80:1x4")
    drawn = noted(monkeypatch)
    reinforce(graph, topology, proposals=600, budget=None)
    roots = [root for root, _ in drawn]
    assert mean(roots[-50:]) < 0.95 * mean(roots[:50])


def test_it_learns_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from placements of which none does."""
    graph, topology = graph_of("nmt"), ss.Topology.parse("p100:1x2")
    memory = ss.simulate(graph, topology, ss.baselines.model_parallel(graph, topology)).memory
    need = int(max(memory.workspace) + 0.2 * max(memory.peak - memory.workspace))
    tight = tuple(replace(device, memory=need) for device in topology.devices)
    drawn = noted(monkeypatch)
    with pytest.raises(ss.SoapstoneError, match="no placement of whole layers was found that fits"):
        reinforce(graph, ss.Topology(tight, topology.links), proposals=400, budget=None)
    overflows = [overflow for _, overflow in drawn]
    assert mean(overflows[-50:]) < 0.9 * mean(overflows[:50])


def test_what_does_not_fit_is_refused() -> None:
    graph, topology = graph_of("gpt2"), ss.Topology.parse("k80:1x2")
    small = tuple(replace(device, memory=2**20) for device in topology.devices)
    with pytest.raises(ss.SoapstoneError, match="no placement of whole layers was found that fits"):
        reinforce(graph, ss.Topology(small, topology.links), proposals=10, budget=None)
    with pytest.raises(ss.SoapstoneError, match="budget=0 is not a number of seconds"):
        reinforce(graph, topology, budget=0)
