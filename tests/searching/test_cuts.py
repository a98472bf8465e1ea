"""How many microbatches a search finds: where a network is slow it cuts the batch, and mixes stages with all else."""

from __future__ import annotations

from functools import cache

import pytest

import soapstone as ss
from soapstone.errors import GraphError, SoapstoneError
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph
from soapstone.searching.cuts import Cuts
from soapstone.searching.problem import Problem
from soapstone.simulator import fastest_pipeline
from soapstone.topology import Device, Link, Topology
from soapstone.zoo.catalogue import Size
from tests.support.chains import graph_of

SIZES: dict[str, Size] = {"width": 512, "layers": 6, "heads": 8, "vocab": 20_000, "length": 128}


@cache
def graph() -> OperatorGraph:
    return load_graph(Request("gpt2", 64, SIZES))


@cache
def slow_network() -> Topology:
    """Two nodes of two devices, and a gigabyte a second between them."""
    devices = tuple(Device(f"gpu{i}", "p100", i // 2, 2**34) for i in range(4))
    links = [Link(device.name, f"host{device.node}", bandwidth=12e9, latency=1000) for device in devices]
    links += [Link(f"host{node}", "network", bandwidth=1e9, latency=15_000) for node in range(2)]
    return Topology(devices, tuple(links))


def test_a_batch_is_cut_where_that_is_faster() -> None:
    """Faster than every baseline, and as fast as a simulation from the start says."""
    found = ss.search(graph(), slow_network(), proposals=1500, budget=None)
    assert found.strategy.microbatches > 1
    assert ss.simulate(graph(), slow_network(), found.strategy).makespan == pytest.approx(found.makespan, rel=1e-12)
    baselines = [ss.baselines.BASELINES[name](graph(), slow_network()) for name in ("data", "expert", "zero1", "fsdp")]
    times = [ss.simulate(graph(), slow_network(), each).makespan for each in baselines]
    times.append(fastest_pipeline(graph(), slow_network(), ss.Training()).makespan)
    assert found.makespan < 0.9 * min(times)
    again = ss.search(graph(), slow_network(), proposals=1500, budget=None)
    assert again.strategy == found.strategy
    assert again.proposals == found.proposals


def test_a_number_of_microbatches_may_be_given() -> None:
    for count in (1, 4):
        found = ss.search(graph(), slow_network(), proposals=100, budget=None, microbatches=count)
        assert found.strategy.microbatches == count
    start = ss.baselines.grid(graph(), slow_network(), (1, 2, 2), 8)
    for initial in (start, [start], "tp2-pp2-m8"):
        found = ss.search(graph(), slow_network(), proposals=100, budget=None, initial=initial)
        assert found.strategy.microbatches == 8
        assert found.makespan <= ss.simulate(graph(), slow_network(), start).makespan


def test_a_search_that_is_wanted_twice_or_cannot_be_gets_a_sentence() -> None:
    def search(microbatches: object = None, initial: object = None, of: OperatorGraph | None = None) -> None:
        ss.search(of or graph(), slow_network(), proposals=9, budget=None, microbatches=microbatches, initial=initial)  # type: ignore[arg-type]

    starts = [ss.baselines.grid(graph(), slow_network(), (2, 1, 2), count) for count in (2, 4)]
    with pytest.raises(SoapstoneError, match="have 2 and 4 microbatches; a search wants all to have the same"):
        search(initial=starts)
    with pytest.raises(SoapstoneError, match="have 2 microbatches"):
        search(microbatches=4, initial=starts[0])
    with pytest.raises(SoapstoneError, match="microbatches=0 is not a whole number above 0"):
        search(microbatches=0)
    with pytest.raises(GraphError, match="64 cannot be cut into 3"):
        search(microbatches=3)


def test_batch_norm_is_not_cut_unasked() -> None:
    """It would see other statistics."""
    problem = Problem(graph_of("resnet-101"), slow_network())
    assert Cuts(problem, None, lambda: False).worth_a_search() == []


def test_where_nothing_fits_whole_gradients_are_accumulated() -> None:
    alone = Topology((Device("gpu0", "a100", 0, 2**34),), ())
    whole = ss.simulate(graph(), alone, ss.baselines.data_parallel(graph(), alone)).fullest.peak
    small = Topology((Device("gpu0", "a100", 0, int(0.7 * whole)),), ())
    found = ss.search(graph(), small, proposals=200, budget=None, recompute=False)
    assert found.strategy.microbatches > 1
    assert ss.simulate(graph(), small, found.strategy).fits
