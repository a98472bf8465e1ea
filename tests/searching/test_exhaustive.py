"""Branch and bound: held against going through every strategy, and its bounds against simulations."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.searching import exhaustive
from soapstone.searching.problem import Problem
from soapstone.strategy import Native
from tests.support.chains import graph_of
from tests.support.seeds import cases


def tiny(kind: str) -> ss.OperatorGraph:
    if kind == "mlp":
        model: nn.Module = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 512))
        return ss.capture(ss.Workload(model, (torch.zeros(64, 4096),), loss=torch.sum))
    if kind == "shared":
        return graph_of("shared")
    return ss.capture(ss.zoo.load("rnnlm", batch=16, length=1, hidden=512, layers=1, vocab=1000))


def all_options(problem: Problem, most: int) -> list[list[Native]]:
    """Every op's options, thinned out so that the strategies can be counted on some fingers."""
    tables = [problem.options.all_of(i) for i in range(len(problem.graph.ops))]
    return [table[:: max(1, -(-len(table) // most))] for table in tables]


@pytest.mark.parametrize("text", ["p100:1x2", "p100:1x4", "cpu:1x2", "h100:1x1+a100:1x2"])
@pytest.mark.parametrize("kind", ["mlp", "shared", "rnnlm"])
def test_it_finds_what_going_through_all_finds(kind: str, text: str) -> None:
    graph, topology = tiny(kind), ss.Topology.parse(text)
    problem = Problem(graph, topology)
    tables = all_options(problem, 6)
    first = [table[0] for table in tables]
    simulator = problem.played(first)
    best = simulator.makespan
    for choice in product(*tables):
        makespan = simulator.propose([*enumerate(choice)], best - 1, _core.Method.resume)
        if makespan is not None:
            simulator.reject()
            best = makespan
    for threads in (1, 2):
        native = _core.Exhaustive(graph.native, problem.machine, problem.times.native, tables)
        assert native.run(first, threads, 60.0)
        assert native.makespan == best
        assert native.root_bound <= best
        assert problem.played(native.best).makespan == best


@pytest.mark.parametrize("text", ["p100:1x4", "cpu:1x3", "k80:2x2", "h100:1x2+a100:1x2"])
@pytest.mark.parametrize(
    "name", cases(["lenet", "rnnlm", "gpt2", "shared", "crop", "inception-v3"], long=["inception-v3"])
)
def test_no_bound_passes_a_makespan(name: str, text: str) -> None:
    """With one option for each op, the bound at the root is that of a whole strategy."""
    graph, topology = graph_of(name), ss.Topology.parse(text)
    problem = Problem(graph, topology)
    for seed in range(6):
        strategy = ss.baselines.random(graph, topology, seed=seed).native
        makespan = problem.played(strategy).makespan
        native = _core.Exhaustive(graph.native, problem.machine, problem.times.native, [[entry] for entry in strategy])
        assert 0 < native.bound([0] * len(strategy)) <= makespan


class Partly(nn.Module):
    """A long table of which a few rows are read, and a part that has no share in its op's parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(200_000, 256))
        self.aside = nn.Parameter(torch.ones(16, 256))
        self.large, self.small = nn.Linear(256, 80_000), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.aside, self.small(x + self.position[:16])], 1)
        loss: torch.Tensor = y.tanh().sum() + self.large(x).sum()
        return loss


def test_bounds_count_only_what_is_read() -> None:
    graph, topology = ss.capture(ss.Workload(Partly(), (torch.zeros(16, 256),))), ss.Topology.parse("p100:1x2")
    problem = Problem(graph, topology)
    proof = exhaustive(graph, topology, first=ss.baselines.data_parallel(graph, topology))
    assert proof.proved
    assert proof.root_gap >= 0
    assert proof.makespan <= ss.search(graph, topology, budget=None, proposals=2000, sharding=False).makespan
    tables = [problem.options.all_of(i) for i in range(len(graph.ops))]
    native = _core.Exhaustive(graph.native, problem.machine, problem.times.native, tables)
    rng = random.Random(0)
    for _ in range(300):
        choice = [rng.randrange(len(table)) for table in tables]
        makespan = problem.played([table[i] for table, i in zip(tables, choice)]).makespan
        assert native.bound(choice) <= makespan


def test_the_proof_of_a_small_lenet() -> None:
    graph, topology = graph_of("lenet"), ss.Topology.parse("p100:1x2")
    proof = exhaustive(graph, topology)
    assert proof.proved
    assert proof.log10_size == pytest.approx(ss.Space(graph, topology).log10_size)
    assert proof.makespan == ss.simulate(graph, topology, proof.strategy).makespan
    assert 0 < proof.root_gap < 1
    assert (
        ss.search(graph, topology, proposals=20_000, budget=None, sharding=False, microbatches=1).makespan
        == proof.makespan
    )


def test_without_time_there_is_no_proof() -> None:
    graph, topology = graph_of("lenet"), ss.Topology.parse("p100:1x4")
    first = ss.baselines.data_parallel(graph, topology)
    proof = exhaustive(graph, topology, budget=1e-6, first=first)
    assert not proof.proved
    assert proof.makespan <= ss.simulate(graph, topology, first).makespan


def test_giants_and_nonsense_are_refused() -> None:
    with pytest.raises(ss.SoapstoneError, match=r"10\^\d+ strategies are too many to go through; use search"):
        exhaustive(graph_of("inception-v3"), ss.Topology.parse("p100:4x4"))
    with pytest.raises(ss.SoapstoneError, match="budget=0 is not a number of seconds"):
        exhaustive(graph_of("lenet"), ss.Topology.parse("p100:1x2"), budget=0)
    with pytest.raises(ss.SoapstoneError, match="first='data' is not a Strategy"):
        exhaustive(graph_of("lenet"), ss.Topology.parse("p100:1x2"), first="data")  # type: ignore[arg-type]
    with pytest.raises(ss.SoapstoneError, match="threads='two' is not a whole number"):
        exhaustive(graph_of("lenet"), ss.Topology.parse("p100:1x2"), threads="two")  # type: ignore[arg-type]
