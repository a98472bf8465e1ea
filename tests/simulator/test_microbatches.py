"""Microbatches: a pipeline worked out by hand, random strategies against Algorithm 1 in plain Python, and what is in
flight."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.costs import OpTimes
from soapstone.errors import StrategyError
from soapstone.simulator import (
    BACKWARD,
    FORWARD,
    GATHER,
    SYNC,
    UPDATE,
    Simulation,
)
from soapstone.topology import Device, Link, Topology
from tests.support.chains import Launching, at_start, graph_of, launches_of, with_hosts
from tests.support.microbatches import microbatched
from tests.support.reference import ReferenceTask, play_reference
from tests.support.sharding import recomputed, sharded

ON = ss.Configuration
STAGES, MICROBATCHES, WIDTH = 4, 16, 8
MS = 10**6  # ns


class Even(ss.AnalyticCosts):
    """All stages alike: the loss takes a nanosecond from the last one's time."""

    by_signature = False

    def __init__(self, forward: int, backward: int) -> None:
        super().__init__()
        self.forward, self.backward = forward, backward

    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool
    ) -> OpTimes:
        name = graph.ops[index].name
        less = name == str(STAGES - 1)
        return OpTimes(1, 1, 0, 0) if name == "sum" else OpTimes(self.forward - less, self.backward - less, 0, 0)

    def update(self, kind: str, optimizer: str) -> tuple[int, float]:
        return 0, 0.0


@cache
def chain() -> ss.OperatorGraph:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(STAGES)))
    return ss.capture(ss.Workload(model, (torch.zeros(MICROBATCHES, WIDTH),), loss=torch.sum))


def pipeline(in_flight: list[int | None], costs: Even) -> Simulation:
    """A layer on each of four devices, between which a message takes a nanosecond."""
    devices = tuple(Device(f"d{i}", "toy", 0, 2**30) for i in range(STAGES))
    links = tuple(Link(device.name, "S", bandwidth=2.0**53, latency=0, overhead=0) for device in devices)
    topology = Topology(devices, links)
    stages = {str(i): ON({}, (i,), in_flight=w) for i, w in enumerate(in_flight)}
    stages["sum"] = ON({}, (STAGES - 1,), in_flight=in_flight[-1])
    strategy = ss.Strategy(chain(), topology, stages, MICROBATCHES)
    return ss.simulate(chain(), topology, strategy, training=ss.Training(costs))


def most_in_flight(sim: Simulation, op: int) -> int:
    """Microbatches whose forward is done and whose backward is not."""
    tasks = sim.tasks[(sim.tasks["op"] == op) & np.isin(sim.tasks["kind"], (FORWARD, BACKWARD))]
    changes = np.where(tasks["kind"] == FORWARD, 1, -1)
    return int(changes[np.argsort(tasks["end"], kind="stable")].cumsum().max())


@pytest.mark.parametrize(("forward", "backward"), [(MS, MS), (MS, 2 * MS), (2 * MS, MS)])
def test_a_window_for_each_stage_is_1f1b(forward: int, backward: int) -> None:
    sim = pipeline([4, 3, 2, 1], Even(forward, backward))
    assert round(sim.makespan_ns, -3) == (MICROBATCHES + STAGES - 1) * (forward + backward)
    assert [most_in_flight(sim, op) for op in range(STAGES)] == [4, 3, 2, 1]


@pytest.mark.parametrize(("forward", "backward"), [(MS, MS), (MS, 2 * MS), (2 * MS, MS)])
def test_without_windows_a_pipeline_takes_as_long_and_holds_all(forward: int, backward: int) -> None:
    sim = pipeline([None] * STAGES, Even(forward, backward))
    assert round(sim.makespan_ns, -3) == (MICROBATCHES + STAGES - 1) * (forward + backward)
    assert most_in_flight(sim, 0) == MICROBATCHES


@pytest.mark.parametrize(("in_flight", "held"), [([4, 3, 2, 1], 4), ([2, 2, 2, 2], 2), ([None] * STAGES, MICROBATCHES)])
def test_devices_hold_what_is_in_flight(in_flight: list[int | None], held: int) -> None:
    """The first stage keeps its input for backward, a sample of each microbatch; what it gives on goes at once."""
    sim = pipeline(in_flight, Even(MS, MS))
    columns: list[Any] = [np.asarray(column) for column in sim.native.holdings(sim.timeline, 0)]
    device, content, op, since, until, size = columns
    kept = (device == 0) & (content == 0) & (op == 0) & (until - since > 2 * MS)
    changes = np.concatenate([size[kept], -size[kept]])
    changes = changes[np.lexsort((changes, np.concatenate([since[kept], until[kept]])))]  # what goes goes first
    assert changes.cumsum().max() == held * 4 * WIDTH


def test_a_run_of_ops_takes_one_microbatch_after_the_other() -> None:
    """Two layers a device: the second one's first forward does not wait for all of the first one's."""
    graph = chain()
    topology = ss.Topology.parse("h100:1x2")
    stages = {str(i): ON({}, (i // 2,)) for i in range(STAGES)} | {"sum": ON({}, (1,))}
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, stages, MICROBATCHES))
    forward = sim.tasks[sim.tasks["kind"] == FORWARD]
    first, second = (forward[forward["op"] == op]["end"] for op in (0, 1))
    assert (second[:-1] <= forward[forward["op"] == 0]["start"][1:]).all()
    assert first[1] > second[0]


NAMES = ("vit", "lenet", "rnnlm", "nmt", "gpt2", "resnet-101")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_random_strategies_follow_algorithm_1(name: str, seed: int) -> None:
    sim = random_simulation(name, seed)
    tasks = [sim.native.task(row) for row in range(len(sim.tasks))]
    launches = launches_of(sim)
    turns = {0: 1, 1: 0}  # backward comes first
    phase = [task.key >> 61 for task in tasks]
    given = [
        ReferenceTask(
            (turns.get(phase[row], phase[row]) << 96) + (task.microbatch << 64) + task.key,
            tuple(task.holds), task.latency, tuple(task.after), launches[row],
        )
        for row, task in enumerate(tasks)
    ]  # fmt: skip
    for row, (task, time) in enumerate(zip(sim.tasks, play_reference(given, *at_start(sim.topology)))):
        assert (task["ready"], task["start"], task["end"]) == (time.ready, time.start, time.end), row


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_every_microbatch_does_what_one_does(name: str, seed: int) -> None:
    """And sums and updates come once, after all; a part has no more in flight than it may."""
    sim = random_simulation(name, seed)
    count, graph = sim.strategy.microbatches, sim.strategy.played
    alone = ss.Strategy(graph, sim.topology, dict(sim.strategy))
    one = ss.simulate(graph, sim.topology, alone, training=sim.training)
    rows = defaultdict(list)
    for row in range(len(sim.tasks)):
        rows[sim.native.task(row).key].append(row)
    assert rows.keys() == set(one.tasks["id"].tolist())
    for own in rows.values():
        task = sim.native.task(own[0])
        keeps_weights = sim.strategy[graph.ops[task.op].name].shard == "optimizer"
        once = task.kind in (SYNC, UPDATE) or (task.kind == GATHER and keeps_weights)
        assert len(own) == (1 if once else count)
        if task.kind in (SYNC, UPDATE):
            assert all(sim.timeline.end[before] <= sim.timeline.ready[own[0]] for before in task.after)
    found = {(t.op, t.part, t.microbatch, t.kind): sim.tasks[row] for row in range(len(sim.tasks))
             if not (t := sim.native.task(row)).finish and t.kind in (FORWARD, BACKWARD)}  # fmt: skip
    for (op, part, number, kind), task in found.items():
        window = sim.strategy[graph.ops[op].name].in_flight
        before = found.get((op, part, number - (window or count), BACKWARD))
        if kind == FORWARD and before is not None:
            assert task["ready"] >= before["end"]


def random_simulation(name: str, seed: int) -> Simulation:
    graph, topology, rng = graph_of(name), ss.Topology.parse("h100:2x2"), random.Random(seed)
    if seed % 3 == 0:
        topology = with_hosts(topology, 3_000)
    counts = [n for n in (2, 4) if graph.num_samples % n == 0]
    strategy = microbatched(graph, topology, rng.choice(counts), seed)
    strategy = recomputed(sharded(strategy, seed), seed)
    training = ss.Training(Launching(0.5 * (seed % 2)), bucket_bytes=rng.choice((0, 4096)), groups_ahead=seed % 3)
    return ss.simulate(graph, topology, strategy, training=training)


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    graph, topology = chain(), ss.Topology.parse("h100:1x2")
    one = {op.name: ON() for op in graph.ops}
    for count, sentence in ((3, "16 cannot be cut into 3"), (0, "from 1 up"), (2.0, "from 1 up")):
        with pytest.raises(StrategyError, match=sentence):
            ss.Strategy(graph, topology, one, count)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="splits 'sample' of size 1 in 2"):
        ss.Strategy(graph, topology, one | {"0": ON({"sample": 2}, (0, 1))}, 16)
    with pytest.raises(StrategyError, match="in_flight must be a whole number"):
        ON(in_flight=0)


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_played_as_if_from_the_start(name: str) -> None:
    """Makespans, limits that decide as a whole play does, bounds and peaks."""
    rng = random.Random(name)
    sim = random_simulation(name, len(name))
    simulator = ss.Simulator(sim.graph, sim.topology, sim.strategy, training=sim.training)
    assert simulator.makespan_ns == sim.makespan_ns
    accepted, count = sim.memory.peak, sim.strategy.microbatches
    for seed in range(12):
        other = recomputed(microbatched(sim.graph, sim.topology, count, 100 + seed), seed)
        names = rng.sample(list(other), min(5, len(other)))
        changes = {op: replace(other[op], shard=simulator.strategy[op].shard) for op in names}
        strategy = simulator.strategy.replace(changes)
        whole = ss.simulate(sim.graph, sim.topology, strategy, training=sim.training)
        assert simulator.propose(changes, limit=whole.makespan_ns - 1) is None
        assert simulator.propose(changes, limit=whole.makespan_ns) == whole.makespan_ns
        assert simulator.native.bound <= whole.makespan_ns
        assert (simulator.memory_bound == whole.memory.bound).all()
        assert (simulator.peak_memory == whole.memory.peak).all()
        if rng.random() < 0.5:
            simulator.accept()
            accepted = whole.memory.peak
        else:
            simulator.reject()
            assert (simulator.peak_memory == accepted).all()


@pytest.mark.parametrize("seed", range(8))
def test_limits_decide_where_messages_cost_hosts_alone(seed: int) -> None:
    """A message that keeps no device busy bounds nothing on it."""
    graph, plain, rng = graph_of("nmt"), ss.Topology.parse("h100:2x2"), random.Random(seed)
    ns = 30 * 10 ** rng.randrange(1, 5)
    hosts = [
        replace(device, send=ns + 7 * i, receive=ns // 2, sum=2 * ns, iteration=3 * ns)
        for i, device in enumerate(plain.devices)
    ]
    topology, training = Topology(tuple(hosts), plain.links), ss.Training(Launching(rng.choice((0.5, 2, 10))))
    count = rng.choice([n for n in (2, 4, 8) if graph.num_samples % n == 0])
    simulator = ss.Simulator(graph, topology, microbatched(graph, topology, count, seed), training=training)
    for number in range(12):
        other = microbatched(graph, topology, count, 50 * seed + number)
        changes = {op: other[op] for op in rng.sample(list(other), 3)}
        whole = ss.simulate(graph, topology, simulator.strategy.replace(changes), training=training)
        assert simulator.propose(changes, limit=whole.makespan_ns) == whole.makespan_ns
        simulator.accept()


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "nmt"])
@pytest.mark.parametrize("count", [1, 2])
def test_no_peak_of_a_small_model_passes_the_bound(name: str, count: int) -> None:
    """Where gradients are added up beside one another, and what is remade is read again."""
    graph, topology = graph_of(name), ss.Topology.parse("cpu:1x3")
    for seed in range(25):
        strategy = microbatched(graph, topology, count if graph.num_samples % count == 0 else 1, seed)
        strategy = recomputed(sharded(strategy, seed), seed) if seed % 2 else strategy
        training = ss.Training(optimizer="sgd", bucket_bytes=4096 * (seed % 3))
        memory = ss.simulate(graph, topology, strategy, training=training).memory
        assert (memory.peak <= memory.bound).all(), seed


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_no_peak_passes_the_bound(name: str, seed: int) -> None:
    sim = random_simulation(name, seed)
    assert (sim.memory.peak <= sim.memory.bound).all()
