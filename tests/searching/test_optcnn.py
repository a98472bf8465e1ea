"""OptCNN: elimination finds the least sum, and the sums are what they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.searching import elimination, optcnn
from soapstone.searching.additive import Additive
from soapstone.searching.elimination import least, order_of
from soapstone.searching.least_sums import FEW, TiedSums, least_sum, least_sums
from soapstone.searching.problem import Problem
from soapstone.searching.tying import levels
from tests.support.chains import Launching, graph_of


@given(st.integers(1, 5), st.data())
def test_elimination_finds_the_least_sum(count: int, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 3)) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    nodes: list[tuple[int, ...]] = [*((i,) for i in range(count)), *edges]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    tables = {key: rng.integers(0, 50, [sizes[i] for i in key]).astype(float) for key in nodes}
    order = order_of(sizes, tables)
    assert order is not None
    assert sorted(order) == [i for i in range(count) if sizes[i] > 1]

    def total(choice: tuple[int, ...]) -> float:
        return float(sum(table[tuple(choice[i] for i in key)] for key, table in tables.items()))

    found, choice = least(sizes, tables, order)
    assert found == total(tuple(choice)) == min(map(total, product(*map(range, sizes))))


def test_many_neighbours_without_a_choice_are_no_trouble() -> None:
    tables: dict[tuple[int, ...], np.ndarray] = {(0, i): np.zeros((2, 1)) for i in range(1, 90)}
    tables[(0,)] = np.array([2.0, 1.0])
    sizes = [2] + [1] * 89
    order = order_of(sizes, tables)
    assert order == [0]
    assert least(sizes, tables, order) == (1.0, [1] + [0] * 89)
    assert len(optcnn(graph_of("nmt"), ss.Topology.parse("cpu:1x1"))) == len(graph_of("nmt").ops)


def test_what_does_not_reduce_has_no_order() -> None:
    everyone = [(i, j) for i in range(12) for j in range(i)]
    assert order_of([100] * 12, [tuple(sorted(edge)) for edge in everyone]) is None


@pytest.mark.parametrize("text", ["p100:1x2", "p100:1x4", "h100:1x2+a100:1x2"])
@pytest.mark.parametrize("name", ["lenet", "inception-v3", "resnet-101", "rnnlm", "nmt", "gpt2", "vit", "shared"])
def test_it_finds_a_strategy_of_the_space(name: str, text: str) -> None:
    graph, topology = graph_of(name), ss.Topology.parse(text)
    told: list[float] = []
    strategy = optcnn(graph, topology, progress=told.append)
    space = ss.Space(graph, topology)
    assert all(strategy[op.name] in space.configurations(op.name) for op in graph.ops)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_where_nothing_overlaps_the_sum_is_the_makespan() -> None:
    """On one device there is nothing to move, so that the sum of the ops' times is what a simulation finds."""
    graph, topology = graph_of("lenet"), ss.Topology.parse("p100:1x1")
    training = ss.Training(Launching(0))  # nor to wait for a host
    problem = Problem(graph, topology, training=training)
    native = _core.Additive(graph.native, problem.machine, problem.times.native)
    one = ss.baselines.data_parallel(graph, topology).native
    compute = sum(int(native.op(i, [entry])[0][0]) for i, entry in enumerate(one))
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology), training=training)
    updates = sim.tasks[sim.tasks["kind"] == 5]
    assert compute == sim.makespan_ns - int((updates["end"] - updates["start"]).sum())


def test_it_splits_large_layers_by_channel() -> None:
    """As Krizhevsky's one weird trick does, where the sum of a layer's gradients is dearer than its input."""
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    graph = ss.capture(ss.Workload(model, (torch.zeros(64, 4096),), loss=torch.sum))
    strategy = optcnn(graph, ss.Topology.parse("p100:1x4"))
    assert [dict(strategy[name].degrees) for name in ("0", "2")] == [{"channel": 4}] * 2


def test_within_a_budget_it_is_the_best_of_some_options() -> None:
    graph, topology = graph_of("inception-v3"), ss.Topology.parse("p100:4x4")
    told: list[float] = []
    hasty = optcnn(graph, topology, budget=1e-9, progress=told.append)
    assert told[-1] == 1.0
    assert ss.simulate(graph, topology, hasty).makespan > 0
    all_of_them = graph_of("lenet"), ss.Topology.parse("p100:1x4")
    assert optcnn(*all_of_them, budget=1000) == optcnn(*all_of_them)
    with pytest.raises(ss.SoapstoneError, match="budget=-1 is not a number of seconds above 0"):
        optcnn(graph, topology, budget=-1)


def test_it_is_a_start_of_a_search() -> None:
    graph, topology = graph_of("rnnlm"), ss.Topology.parse("p100:1x4")
    problem = Problem(graph, topology)
    start = problem.played(least_sum(Additive(problem), levels(graph), FEW)[1]).makespan
    assert ss.search(graph, topology, proposals=1, budget=None).makespan * 1e9 <= start
    only = ss.search(graph, topology, proposals=1, budget=None, initial="optcnn")
    assert round(only.makespan * 1e9) <= start
    hasty = ss.search(graph, topology, budget=1e-3, initial="optcnn")  # who asks for it gets it
    assert round(hasty.makespan * 1e9) <= start


def test_as_a_start_it_keeps_to_its_share_of_the_time() -> None:
    problem = Problem(graph_of("nmt"), ss.Topology.parse("p100:4x4"))
    assert list(least_sums(Additive(problem), levels(problem.graph), lambda: True)) == []
    small = Problem(graph_of("lenet"), ss.Topology.parse("p100:4x4"))
    tyings = levels(small.graph)
    few, *_, all_of_them = least_sums(Additive(small), tyings)
    assert few == least_sum(Additive(small), tyings, FEW)
    assert all_of_them == least_sum(Additive(small), tyings, None)
    found: list[object] = []
    for each in least_sums(Additive(small), tyings, lambda: len(found) > 0):
        found.append(each)
    assert found == [few]


def test_what_reduces_with_few_options_only_keeps_what_they_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, topology = graph_of("lenet"), ss.Topology.parse("p100:4x4")
    tyings, additive = levels(graph), Additive(Problem(graph, topology))
    monkeypatch.setattr(elimination, "LARGEST", FEW**2)
    assert list(least_sums(additive, tyings)) == [least_sum(additive, tyings, FEW)]
    assert len(optcnn(graph, topology, budget=1000)) == len(graph.ops)
    monkeypatch.setattr(elimination, "LARGEST", 1)
    with pytest.raises(ss.SoapstoneError, match="does not reduce"):
        list(least_sums(additive, tyings))


class _Steps(nn.Module):
    """Two layers that are alike, but for how often they are used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.often, self.once = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = self.often(x)
        done: torch.Tensor = self.once(x)
        return done


@pytest.mark.parametrize("most", [3, 12, None])
def test_what_tied_layers_come_to_is_the_sum_of_their_ops_and_edges(most: int | None) -> None:
    graph = ss.capture(ss.Workload(_Steps(512), (torch.zeros(1024, 512),), loss=torch.sum))
    additive = Additive(Problem(graph, ss.Topology.parse("p100:4x4")))
    groups = ss.searching.tied_layers(graph)
    sums = TiedSums(additive, groups, most)
    order = order_of(sums.sizes, sums.nodes.values())
    assert order is not None
    total, choice = least(sums.sizes, sums.tables(lambda _: None), order)
    strategy = sums.strategy(choice)
    native = _core.Additive(graph.native, additive.problem.machine, additive.problem.times.native)
    added = 0
    for group in groups:
        (compute,), (sync,) = native.op(group[0], [strategy[group[0]]])
        added += int(compute) * len(group) + int(sync)
    for edge in additive.edges:
        added += int(native.edge(edge.tensor, edge.place, [strategy[edge.maker]], [strategy[edge.reader]])[0])
    assert total == added
