"""The examples by hand in docs/design: each number that a page states, from the code that it describes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.costs import Costs, OpTimes
from soapstone.runtime.checkpoints.boxes import runs
from soapstone.runtime.listing import lines
from soapstone.runtime.plan import Plan
from soapstone.searching.elimination import least
from soapstone.searching.methods import TEMPERATURES
from soapstone.simulator import KnownTimes, machine_of
from tests.support.reference import ReferenceTask, play_reference

ON = ss.Configuration


class Given(Costs):
    """Forward and backward ns by op and by how many samples a part has; an update takes 1."""

    def __init__(self, times: dict[tuple[str, int], tuple[int, int]]) -> None:
        self.given = times

    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        return OpTimes(*self.given[graph.ops[index].name, extents[0]])

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        return 0, 0.0


@pytest.fixture(scope="module")
def graph() -> ss.OperatorGraph:
    """The model of most pages."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return ss.capture(ss.Workload(model, (torch.zeros(4, 6),), loss=torch.sum))


def test_capture(graph: ss.OperatorGraph) -> None:
    shown = str(graph)
    for line in ("0: linear [sample=4, channel=8, {in}=6]", "2: linear [sample=4, channel=3, {in}=8]"):
        assert line in shown
    assert "sum: sum [{sample}=4, {channel}=3]" in shown
    assert (graph.facts.flops, graph.facts.saved_bytes) == (2 * 4 * 6 * 8 + 4 * 8 + 2 * 4 * 8 * 3 + 4 * 3, 224)


def test_rules(graph: ss.OperatorGraph) -> None:
    _, needs, _ = graph.native.regions_at(0, [(0, 2), (4, 8), (0, 6)])
    assert needs[0] == [[(0, 2), (0, 6)], [(4, 8), (0, 6)], [(4, 8)]]


@pytest.mark.parametrize(
    ("configurations", "expected"),
    [
        ({"0": ON({"channel": 2}, (0, 1)), "2": ON({"in": 2}, (0, 1)), "sum": ON({}, (0,))}, [48, 48, 12]),
        (
            {"0": ON({"channel": 2}, (0, 1)), "2": ON({"channel": 3}, (0, 1, 0)), "sum": ON({}, (0,))},
            [64, 64, 16, 16, 64, 64],
        ),
        (
            {name: ON({"sample": 2}, (0, 1)) for name in ("0", "2", "sum")},
            [4, 4, 332],
        ),
    ],
    ids=["matching", "channels", "samples"],
)
def test_communication(
    graph: ss.OperatorGraph, configurations: dict[str, ss.Configuration], expected: list[int]
) -> None:
    topology = ss.Topology.parse("cpu:1x2")
    tasks = ss.simulate(graph, topology, ss.Strategy(graph, topology, configurations)).tasks
    assert [int(n) for n in tasks["bytes"] if n] == expected


def test_costs() -> None:
    work = ss.Workload(nn.Linear(1024, 1024), (torch.zeros(256, 1024),), loss=torch.sum)
    graph, costs = ss.capture(work), ss.AnalyticCosts()
    whole = costs.times(graph, 0, (256, 1024, 1024), "p100", False)
    half = costs.times(graph, 0, (128, 1024, 1024), "p100", False)
    assert (whole.forward, whole.backward, half.forward) == (96407, 84296, 62548)
    assert whole.launch_forward == 15200
    compute = 2 * (256 * 1024 * (1024 + 21) + 0.4 * 56 * 64 * 64 * 1024) / (0.7625 * 10.6e12) * 1e9
    moving = 4 * (2 * 256 * 1024 + 1024 * 1024 + 1024) / (0.7046 * 732e9) * 1e9
    assert whole.forward == pytest.approx(5300 + (compute**3 + moving**3) ** (1 / 3), abs=2)


def test_machines() -> None:
    pair, four = (ss.Topology.parse(name).native for name in ("p100:1x2", "p100:1x4"))
    holds, latency = pair.transfer(0, 1, 2**20)
    assert ([ns for _, ns in holds], latency) == ([57268], 2000)
    holds, latency = pair.all_reduce([0, 1], 4_198_400)
    assert ([ns for _, ns in holds], latency) == ([229296] * 2, 4000)
    holds, latency = four.all_reduce([0, 1, 2, 3], 4_198_400)
    assert ([ns for _, ns in holds], latency) == ([343944] * 4, 12000)
    holds, latency = ss.Topology.parse("h100:4x8").native.all_reduce(list(range(32)), 2**30)
    assert (max(ns for _, ns in holds), latency) == (5_651_273, 20_000)
    holds, latency = ss.Topology.parse("h100:2x8").native.all_reduce(list(range(16)), 4)
    assert max(ns for _, ns in holds) + latency == pytest.approx(12_000, rel=0.01)
    for text, size, bus in (("h100:4x8", 2**33, 378), ("h100:2x8", 2**33, 511), ("h200:248x8", 2**29, 371)):
        topology = ss.Topology.parse(text)
        holds, latency = topology.native.all_reduce(list(range(topology.num_devices)), size)
        share = 2 * (topology.num_devices - 1) / topology.num_devices
        assert round(share * size / (max(ns for _, ns in holds) + latency)) == bus


def test_bounds() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    graph = ss.capture(ss.Workload(model, (torch.zeros(8, 8),), loss=torch.sum))
    topology = ss.Topology.parse("p100:1x2")
    links = tuple(replace(link, bandwidth=256e9, latency=0) for link in topology.links)  # 256 bytes take 1 ns
    topology = replace(topology, links=links)
    names = [op.name for op in graph.ops]
    costs = Given({(name, 8): ns for name, ns in zip(names, [(10, 20), (30, 60), (5, 5)])})
    strategy = ss.Strategy(graph, topology, {name: ON({}, (0,)) for name in names})
    sim = ss.Simulator(graph, topology, strategy, training=ss.Training(costs))
    assert sim.makespan_ns == 131
    moved = {names[1]: ON({}, (1,))}
    assert sim.propose(moved) == 135
    assert sim.native.bound == 135
    sim.reject()
    assert sim.propose(moved, limit=131) is None
    assert sim.native.bound == 135


def test_search() -> None:
    """How often a chain goes from 98 to 99 us, and from 99 to 105, at the temperature of one of four moves."""
    temperature = TEMPERATURES["soapstone"] / 4
    assert temperature == 0.02
    graph = ss.capture(ss.Workload(nn.Linear(8, 8), (torch.zeros(8, 8),), loss=torch.sum))
    topology, tries = ss.Topology.parse("p100:1x2"), 1000
    for now, then, expected in ((98_000, 99_000, 0.602), (99_000, 105_000, 0.053), (100_000, 98_000, 1.0)):
        # On one device: forward, backward, the loss's two, and the update are one after the other.
        costs = Given({("linear", 8): (now - 5, 1), ("linear", 4): ((then - 6) // 2, 1), ("sum", 8): (1, 2)})
        times = KnownTimes(graph, topology, costs)
        machine = machine_of(topology, times, ss.Training(costs, "sgd"))
        whole, split = ([1, 1, 1], [0], 0, False, 0), ([2, 1, 1], [0, 0], 0, False, 0)
        rest = ([1, 1], [0], 0, False, 0)
        times.fill_all([(0, *whole[:2]), (0, *split[:2]), (1, *rest[:2])])
        accepted = 0
        for seed in range(tries):
            chain = _core.Chain(graph.native, machine, times.native, [[]], [], 0, seed)
            chain.go([whole, rest])
            assert chain.makespan == now
            chain.walk([([0], 0, [split], False, [], False)], temperature, temperature, True, (1, 1e9, 2**62, 1e9))
            accepted += chain.makespan != now
            assert chain.makespan in (now, then)
        assert accepted / tries == pytest.approx(expected, abs=0.05)


def test_exact() -> None:
    edge = np.array([[0.0, 2.0], [2.0, 0.0]])
    own: dict[tuple[int, ...], np.ndarray] = {
        (0,): np.array([2.0, 3.0]),
        (1,): np.array([2.0, 5.0]),
        (2,): np.array([6.0, 3.0]),
    }
    assert least([2, 2, 2], {**own, (0, 1): edge, (1, 2): edge}, [0, 1, 2]) == (9.0, [0, 0, 1])


def test_runtime(graph: ss.OperatorGraph) -> None:
    topology = ss.Topology.parse("cpu:1x2")
    placed = {"0": ON({"sample": 2}, (0, 1)), "2": ON({}, (1,)), "sum": ON({}, (1,))}
    simulation = ss.simulate(graph, topology, ss.Strategy(graph, topology, placed))
    plan = Plan(simulation, simulation.order, 2)
    shown = [[(line.kind, line.what, line.bytes) for line in lines(plan, device)] for device in (0, 1)]
    ends = [("sync", "0.weight, 0.bias", 224)]
    assert shown[0] == [
        ("forward", "0[0]", 0),
        ("send", "0[0]", 64),
        ("announce", "the loss", 0),
        ("receive", "gradient of 0[0]", 64),
        ("backward", "0[0]", 0),
        *ends,
    ]
    assert shown[1] == [
        ("forward", "0[1]", 0),
        ("receive", "0[0]", 64),
        ("forward", "2[0], sum[0]", 0),
        ("announce", "the loss", 0),
        ("backward", "sum[0], 2[0]", 0),
        ("backward", "0[1]", 0),
        ("send", "gradient of 0[0]", 64),
        *ends,
    ]


def test_checkpoints() -> None:
    found = list(runs([(0, 4), (0, 6)], 4, 15))
    assert found == [([(0, 1), (4, 6)], 0), ([(1, 2), (0, 6)], 2), ([(2, 3), (0, 3)], 8)]


def test_calibration() -> None:
    curve = _core.Curve([(1 << 10, 40_000), (1 << 20, 540_000), (1 << 24, 5_500_000)])
    assert curve.time(1 << 11) == pytest.approx(40_500, abs=50)
    assert curve.time(1 << 25) == pytest.approx(10_800_000, abs=50_000)


def test_hosts() -> None:
    found = play_reference(
        [ReferenceTask(i, ((0, time),), 0, (i - 1,) if i else (), (4,)) for i, time in enumerate((2, 10, 2))]
    )
    assert [(times.ready, times.start, times.end) for times in found] == [(0, 4, 6), (6, 8, 18), (18, 18, 20)]
