"""Bounds that never pass the makespan, and plays that skip nothing that changes: where messages take as long as ops, so
that bounds decide most, and on graphs with odd ends."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.costs import OpTimes
from soapstone.simulator import ENGINES

ON = ss.Configuration


class Given(ss.AnalyticCosts):
    """Forward and backward ns of ops by name, of what finishes any, and of an update: overhead, for each element."""

    by_signature = False

    def __init__(
        self, times: dict[str, tuple[int, int]], finish: tuple[int, int] = (1, 1), update: tuple[int, float] = (0, 0.0)
    ) -> None:
        super().__init__()
        self.given, self.finish, self.updating = times, finish, update

    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool
    ) -> OpTimes:
        return OpTimes(*self.given.get(graph.ops[index].name, (1, 1)), *self.finish)

    def update(self, kind: str, optimizer: str) -> tuple[int, float]:
        return self.updating


class Joined(nn.Module):
    """A part of `c` that reads the model's input alone waits for no op."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.b(torch.relu(self.a(x))))
        y: torch.Tensor = self.d(torch.tanh(self.c(torch.cat([x, h], 1))))
        return y


class Branches(nn.Module):
    """`y` is read by a long branch and, close to the loss, by `o`."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y, self.o = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(66, 4)
        self.c1, self.c2, self.c3 = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.y(torch.relu(self.x(x))))
        z = self.c3(torch.relu(self.c2(torch.relu(self.c1(y)))))
        out: torch.Tensor = self.o(torch.cat([z, y], 1))
        return out


class Table(nn.Module):
    """A table that one op reads with a gradient and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(16, 6))
        self.pre, self.last = nn.Linear(6, 6), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.pre(x)
        y = self.last(F.linear(h, self.table))
        return torch.cat([y, F.linear(h.detach(), self.table).detach()], 1)


class Halves(nn.Module):
    """Of `h` only every other element is used; a pool that is not split reads those between, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.pool = nn.LSTMCell(4, 7), nn.MaxPool1d(1, stride=2)
        self.slow, self.fast, self.last = nn.Linear(4, 4), nn.Linear(7, 4), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(x.shape[0], 7)
        h, c = self.cell(x, (zeros, zeros))
        y: torch.Tensor = self.last(torch.cat([self.slow(self.pool(h.unsqueeze(1)).flatten(1)), self.fast(c)], 1))
        return y


def captured(model: nn.Module, width: int, batch: int = 8) -> ss.OperatorGraph:
    return ss.capture(ss.Workload(model, (torch.zeros(batch, width),), loss=torch.sum))


def linked(bandwidth: float) -> ss.Topology:
    topology = ss.Topology.parse("p100:1x4")
    return replace(topology, links=tuple(replace(link, bandwidth=bandwidth) for link in topology.links))


def check(sim: ss.Simulator, changes: dict[str, ss.Configuration], times: int = 1) -> int:
    """Every engine, and limits at the makespan and below; followers are known after some rejected proposals."""
    makespan = 0
    for _ in range(times):
        makespan = sim.propose(changes, engine="full") or 0
        assert sim.native.bound <= makespan
        timeline = sim.native.timeline()
        sim.reject()
    for engine in ENGINES:
        assert sim.propose(changes, limit=makespan, engine=engine) == makespan
        assert all(np.array_equal(a, b) for a, b in zip(sim.native.timeline(), timeline))
        sim.reject()
        assert sim.propose(changes, limit=makespan - 1, engine=engine) is None
    return makespan


def test_a_part_that_waits_for_no_op_may_leave_its_device_earlier() -> None:
    graph, topology = captured(Joined(), 8), ss.Topology.parse("p100:1x4")
    costs = Given({"a": (10**6, 1), "b": (10**6, 1), "c": (5 * 10**6, 1), "d": (10**6, 1)})
    where = {"a": ON(), "b": ON(), "c": ON({"in": 2}, (0, 1)), "d": ON({}, (1,)), "sum": ON({}, (1,))}
    sim = ss.Simulator(graph, topology, ss.Strategy(graph, topology, where), training=ss.Training(costs))
    check(sim, {"c": ON({"in": 2}, (2, 1))})


def test_gradients_of_readers_side_by_side_are_not_added_up() -> None:
    graph, topology = captured(Branches(), 8), linked(1e6)
    costs = Given({"c1": (1, 10**6), "c2": (1, 10**6), "c3": (1, 10**6)})
    places = {"x": 2, "y": 3, "c1": 0, "c2": 0, "c3": 0, "o": 1, "sum": 1}
    strategy = ss.Strategy(graph, topology, {name: ON({}, (device,)) for name, device in places.items()})
    check(ss.Simulator(graph, topology, strategy, training=ss.Training(costs)), {"y": ON({}, (0,))}, times=9)


def test_a_gradient_sum_of_other_rows_is_another_task() -> None:
    """As many bytes among the same devices, but behind other parts' backwards."""
    graph, topology = captured(Table(), 6), linked(2e4)
    rows, detached = sorted((op for op in graph.ops if op.kind == "linear" and not op.parameters[0].count(".")),
                            key=lambda op: not op.backward)  # fmt: skip
    where = {op.name: ON() for op in graph.ops}
    where[rows.name] = ON({"channel": 4}, (0, 0, 0, 0))
    where[detached.name] = ON({"channel": 4}, (0, 0, 1, 0))
    costs = Given({rows.name: (1000, 10**6), "pre": (1000, 1000)})
    sim = ss.Simulator(graph, topology, ss.Strategy(graph, topology, where), training=ss.Training(costs))
    check(sim, {detached.name: ON({"channel": 4}, (0, 1, 0, 0))})


def test_a_refused_proposal_leaves_nothing_in_the_bounds() -> None:
    graph = captured(Branches(), 8, batch=64)
    links = ss.Topology.parse("p100:1x4").links
    slow = [replace(link, bandwidth=1e6 if {link.source, link.target} == {"gpu0", "gpu1"} else 1.0) for link in links]
    topology = replace(ss.Topology.parse("p100:1x4"), links=tuple(slow))
    sim = ss.Simulator(graph, topology, ss.Strategy(graph, topology, {op.name: ON() for op in graph.ops}))
    check(sim, {"c1": ON({}, (1,))})
    with pytest.raises(ss.SoapstoneError, match="some two hours"):
        sim.propose({"c1": ON({}, (1,)), "o": ON({}, (2,))})
    check(sim, {"c1": ON({}, (1,))})


def test_an_update_that_loses_gradients_may_come_sooner() -> None:
    """Device 0 waits for the sum of what `a`, the last in backward, has there; without it, not even for `b`."""
    graph, topology = captured(Joined(), 8), ss.Topology.parse("p100:1x4")
    costs = Given({"b": (1, 5 * 10**5)}, update=(0, 10.0**4))
    where = {op.name: ON() for op in graph.ops} | {"a": ON({"sample": 2}, (0, 1)), "b": ON({}, (2,))}
    strategy = ss.Strategy(graph, topology, where)
    check(ss.Simulator(graph, topology, strategy, training=ss.Training(costs)), {"a": ON({}, (1,))})


def test_a_part_that_loses_one_of_two_gradients_may_begin_backward_sooner() -> None:
    """Split in four, the pool reads nothing of every other part of the cell, which then waits for `fast` alone."""
    graph, topology = captured(Halves(), 4), ss.Topology.parse("p100:1x4")
    costs = Given({"cell": (1000, 10**6), "slow": (1000, 10**6), "fast": (1000, 1000)})
    where = {op.name: ON() for op in graph.ops} | {"cell": ON({"length": 7}, (0, 3, 1, 3, 2, 3, 0))}
    where |= {"pool": ON({}, (1,)), "slow": ON({}, (1,)), "fast": ON({}, (2,))}
    sim = ss.Simulator(graph, topology, ss.Strategy(graph, topology, where), training=ss.Training(costs))
    check(sim, {"pool": ON({"length": 4}, (1, 1, 1, 1))})


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("model", [Joined, Branches, Table, Halves])
def test_random_times_and_places(model: type[nn.Module], seed: int) -> None:
    rng = random.Random(seed)
    graph, topology = captured(model(), {Table: 6, Halves: 4}.get(model, 8)), linked(10 ** rng.uniform(5, 8.5))

    def times() -> tuple[int, int]:
        return rng.randrange(1, 10**6), rng.randrange(1, 10**6)

    update = rng.choice(((0, 0.0), (rng.randrange(10**6), rng.uniform(0, 10**5))))
    costs = Given({op.name: times() for op in graph.ops}, finish=times(), update=update)

    def draw(op: str) -> ss.Configuration:
        parts = rng.choice((2, 2, 4))
        dims = [dim for dim in graph.op(op).dims if dim.splittable and dim.size >= parts]
        degrees = {rng.choice(dims).name: parts} if dims and rng.random() < 0.4 else {}
        return ON(degrees, tuple(rng.randrange(4) for _ in range(parts if degrees else 1)))

    names = [op.name for op in graph.ops]
    strategy = ss.Strategy(graph, topology, {name: draw(name) for name in names})
    sim = ss.Simulator(graph, topology, strategy, training=ss.Training(costs))
    for number in range(40):
        changes = {name: draw(name) for name in rng.sample(names, rng.choice((1, 1, 2)))}
        makespan = check(sim, changes)
        if number % 13 == 12:
            assert sim.propose(changes) == makespan
            sim.accept()
