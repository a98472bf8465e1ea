"""The incremental simulator: all engines to the nanosecond, limits that decide as a full simulation does, undo."""

from __future__ import annotations

import dataclasses
import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.costs import OpTimes
from soapstone.graph import Op
from soapstone.simulator import ENGINES
from tests.support.chains import (
    SMALL,
    configurations,
    graph_of,
    limit_of,
    moves,
    play_all,
    same_as_fresh,
    shard_of,
    start,
)
from tests.support.seeds import cases

TOPOLOGIES = ["cpu:1x2", "cpu:1x5", "k80:2x4", "h100:1x2+a100:1x3", "p100:4x4"]  # shared links, odd counts, mixed kinds
FAMILIES = ["mlp", "cnn", "lstm", "crop", "shared", *SMALL]
PROPOSALS = 30  # of each model on each topology; benchmarks.agreement has a million


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", TOPOLOGIES)
def test_engines_agree_on_every_task_of_every_proposal(name: str, text: str) -> None:
    rng = random.Random(0)
    sim = start(name, text, seed=len(name) + len(text))
    for number, changes in enumerate(islice(moves(name, text, 0), PROPOSALS)):
        if number == PROPOSALS // 3:
            sim.native.look_closely()
        makespan = play_all(sim, changes)
        if rng.random() < 0.3:
            assert sim.propose(changes, engine=rng.choice(ENGINES)) == makespan
            sim.accept()
        if number % 25 == 0:
            same_as_fresh(sim)
    same_as_fresh(sim)


@pytest.mark.parametrize("launching", [0.1, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_engines_agree_where_tasks_wait_for_their_hosts(name: str, launching: float) -> None:
    """From hosts that are far ahead of their devices to some that hold up everything."""
    text = TOPOLOGIES[len(name) % len(TOPOLOGIES)]
    sim = start(name, text, seed=1, bucket_bytes=2000, launching=launching, messages=int(launching * 5000))
    rng = random.Random(launching)
    for number, changes in enumerate(islice(moves(name, text, 5), PROPOSALS // 2)):
        if number == PROPOSALS // 6:
            sim.native.look_closely()
        makespan = play_all(sim, changes)
        assert sim.propose(changes, limit=makespan - 1) is None
        assert sim.propose(changes, limit=makespan) == makespan
        sim.accept() if rng.random() < 0.3 else sim.reject()
        if number % 25 == 0:
            same_as_fresh(sim)


@pytest.mark.parametrize("name", ["inception-v3", "nmt"])
def test_engines_agree_on_64_devices(name: str) -> None:
    sim = start(name, "k80:16x4", seed=0)
    for changes in islice(moves(name, "k80:16x4", 1), 40):
        play_all(sim, changes)
        sim.propose(changes)
        sim.accept()
    same_as_fresh(sim)


@pytest.mark.parametrize("name", FAMILIES)
def test_buckets_follow_the_changes(name: str) -> None:
    sim = start(name, "p100:2x2", seed=1, bucket_bytes=2000)
    for changes in islice(moves(name, "p100:2x2", 2), 20):
        play_all(sim, changes)
        sim.propose(changes)
        sim.accept()
        same_as_fresh(sim)


@pytest.mark.parametrize("name", ["cnn", "lstm", "shared", "nmt", "gpt2"])
@pytest.mark.parametrize("text", ["cpu:1x2", "p100:4x4"])
def test_nothing_needs_a_loss_that_separates_forward_from_backward(name: str, text: str) -> None:
    rng = random.Random(2)
    halves, whole = (start(name, text, seed=3, loss_may_separate=each) for each in (True, False))
    for changes in islice(moves(name, text, 4), 50):
        limit = None if rng.random() < 0.3 else int(halves.makespan_ns * rng.uniform(0.99, 1.02))
        engine = rng.choice(ENGINES)
        found = halves.propose(changes, limit=limit, engine=engine)
        assert whole.propose(changes, limit=limit, engine=engine) == found
        if found is not None:
            accepts = rng.random() < 0.5
            for sim in (halves, whole):
                sim.accept() if accepts else sim.reject()
    same_as_fresh(halves)
    same_as_fresh(whole)


# ---- limits ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", TOPOLOGIES)
@pytest.mark.parametrize(
    "name", cases(["cnn", "lstm", "crop", "inception-v3", "nmt", "gpt2"], long=["cnn", "inception-v3"])
)
def test_a_chain_is_the_same_with_limits_and_without(name: str, text: str, engine: str) -> None:
    rng = random.Random(1)
    bounded, unbounded = start(name, text, seed=2), start(name, text, seed=2)
    first = current = bounded.makespan_ns
    for changes in islice(moves(name, text, 3), PROPOSALS):
        limit = limit_of(current, rng.random(), first)
        full = unbounded.propose(changes, engine="full")
        assert full is not None
        assert bounded.propose(changes, limit=limit, engine=engine) == (full if full <= limit else None)
        if full > limit:
            unbounded.reject()
            continue
        current = full
        bounded.accept()
        unbounded.accept()
    assert bounded.strategy == unbounded.strategy
    same_as_fresh(bounded)
    assert bounded.native.num_unplayed + bounded.native.num_cut_short > 0


def test_a_limit_is_the_largest_makespan_that_passes() -> None:
    sim = start("cnn", "p100:2x4", seed=0)
    for changes in islice(moves("cnn", "p100:2x4", 4), 50):
        makespan = play_all(sim, changes)
        for engine in ENGINES:
            assert sim.propose(changes, limit=makespan, engine=engine) == makespan
            sim.reject()
            assert sim.propose(changes, limit=makespan - 1, engine=engine) is None


def test_a_proposal_that_changes_nothing_takes_as_long_as_what_is() -> None:
    sim = start("cnn", "p100:1x4", seed=0)
    same = {op.name: sim.strategy[op.name] for op in sim.graph.ops[:2]}
    assert sim.propose(same, limit=sim.makespan_ns - 1) is None
    assert sim.propose(same, limit=sim.makespan_ns) == sim.makespan_ns
    sim.reject()
    assert sim.propose(same) == sim.makespan_ns
    sim.accept()
    same_as_fresh(sim)
    for changes in islice(moves("cnn", "p100:1x4", 5), 10):
        play_all(sim, changes)


# ---- what is played ----


def test_backward_is_played_from_where_it_changes() -> None:
    """An op in the middle of a chain of layers: neither the forward before it nor the backward behind it is played."""
    sim = start("resnet-101", "p100:1x4", seed=0)
    ops = [op for op in sim.graph.ops if "layers" in op.name or op.kind == "conv2d"]
    middle = ops[len(ops) // 2].name
    assert sim.propose({middle: ss.Configuration({}, (0,))}, engine="full") is not None
    full = sim.native.num_served
    sim.reject()
    assert sim.propose({middle: ss.Configuration({}, (0,))}) is not None
    assert sim.native.num_served < 0.75 * full
    sim.accept()
    same_as_fresh(sim)


def test_what_is_only_shifted_is_not_played_again() -> None:
    """A layer on the other device: those behind it come later, and so do the gradients, but all by the same."""
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(60)))
    graph = ss.capture(ss.Workload(layers, (torch.zeros(4, 8),), loss=torch.sum))
    topology = ss.Topology.parse("cpu:1x2")
    first, *others = (op.name for op in graph.ops)
    places = {first: ss.Configuration({"sample": 2}, (0, 1)), **{op: ss.Configuration() for op in others}}
    training = ss.Training(bucket_bytes=0)
    sim = ss.Simulator(graph, topology, ss.Strategy(graph, topology, places), training=training)
    for op in others[9:59:10]:
        changes = {op: ss.Configuration({}, (1,))}
        makespan = play_all(sim, changes)
        assert sim.propose(changes) == makespan > sim.makespan_ns
        assert sim.native.num_served < 40
        sim.accept()
        same_as_fresh(sim)


# ---- undo ----


@given(st.data())
def test_whatever_is_proposed_accepted_and_rejected_the_strategy_is_what_was_accepted(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["mlp", "cnn", "lstm", "crop"]))
    text = data.draw(st.sampled_from(["cpu:1x2", "k80:1x3", "p100:2x2"]))
    options = configurations(name, text)
    sim = start(name, text, seed=data.draw(st.integers(0, 3)))
    strategy = sim.strategy
    for _ in range(data.draw(st.integers(1, 6))):
        ops = data.draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True))
        drawn = random.Random(data.draw(st.integers(0, 99)))
        changes = {op: dataclasses.replace(data.draw(st.sampled_from(options[op])), shard=shard_of(name, op, drawn))
                   for op in ops}  # fmt: skip
        limit = data.draw(st.none() | st.integers(0, 2 * sim.makespan_ns))
        fresh = ss.simulate(sim.graph, sim.topology, strategy.replace(changes), training=sim.training)
        passes = limit is None or fresh.makespan_ns <= limit
        found = sim.propose(changes, limit=limit, engine=data.draw(st.sampled_from(ENGINES)))
        assert found == (fresh.makespan_ns if passes else None)
        if passes:
            assert np.array_equal(sim.memory_bound, fresh.memory.bound)
            if data.draw(st.booleans()):
                strategy = strategy.replace(changes)
                sim.accept()
            else:
                sim.reject()
        assert sim.strategy == strategy
        same_as_fresh(sim)


class Moody(ss.AnalyticCosts):
    """Costs that know one op only whole."""

    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool
    ) -> OpTimes:
        if graph.ops[index].name == "second" and extents != tuple(dim.size for dim in graph.ops[index].dims):
            raise ss.SoapstoneError("these costs are moody")
        return super().times(graph, index, extents, kind, combines)


def test_what_fails_leaves_the_simulator_as_it_was() -> None:
    graph, topology = graph_of("mlp"), ss.Topology.parse("cpu:1x2")
    whole = ss.Strategy(graph, topology, {op.name: ss.Configuration() for op in graph.ops})
    sim = ss.Simulator(graph, topology, whole, training=ss.Training(Moody()))
    halves = ss.Configuration({"sample": 2}, (0, 1))
    with pytest.raises(ss.SoapstoneError, match="these costs are moody"):
        sim.propose({"first": halves, "second": halves})
    same_as_fresh(sim)
    assert sim.propose({"first": halves}) is not None
    sim.accept()
    same_as_fresh(sim)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_that_waits_for_nothing_is_ready_at_once(engine: str) -> None:
    """The table's last rows have no gradient; where a device holds only those, its update has nothing to wait for."""
    sim = start("shared", "cpu:1x3", seed=0)
    place = {op.name: ss.Configuration({}, (0,)) for op in sim.graph.ops}
    reader = next(op for op in sim.graph.ops if not op.backward and any("table" in i for i in tensors_of(sim, op)))
    for device in (1, 0, 2):
        place[reader.name] = ss.Configuration({}, (device,))
        sim.propose(place, engine=engine)
        sim.accept()
        same_as_fresh(sim)
        _, ready, _ = sim.native.timeline()
        assert (np.diff(ready) >= 0).all()


def tensors_of(sim: ss.Simulator, op: Op) -> list[str]:
    return [sim.graph.tensors[i.tensor].name for i in op.inputs]


def test_a_much_longer_iteration_is_played_as_well() -> None:
    """From one device to contractions over slow links: most tasks come far behind the makespan that was."""
    graph, topology = graph_of("gpt2"), ss.Topology.parse("k80:4x4")
    whole = ss.Strategy(graph, topology, {op.name: ss.Configuration() for op in graph.ops})
    sim = ss.Simulator(graph, topology, whole)
    split = {
        op.name: ss.Configuration({dim.name: dim.size}, tuple(i * 7 % 16 for i in range(dim.size)))
        for op in graph.ops
        for dim in op.dims[-1:]
        if dim.splittable
    }
    play_all(sim, split)
    sim.propose(split)
    sim.accept()
    same_as_fresh(sim)


# ---- what fails ----


def test_the_core_checks_what_it_is_given() -> None:
    sim = start("mlp", "cpu:1x2", seed=0)
    (degrees, devices, *_), *_ = sim.strategy.native
    good = (1, sim.strategy.native[1])
    none = [0] * len(degrees)
    for change, sentence in (
        ((99, (degrees, devices, 0, False, 0)), "no such op"),
        ((0, (degrees, [0] * 9, 0, False, 0)), "one device a part"),
        ((0, (none, devices, 0, False, 0)), "degree is out of range"),
        ((0, ([], devices, 0, False, 0)), "one degree a dim"),
        ((0, ([10**6] * len(degrees), devices, 0, False, 0)), "out of range"),
        ((0, (degrees, [10**9] * len(devices), 0, False, 0)), "no such device"),
        ((0, (degrees, [-1] * len(devices), 0, False, 0)), "no such device"),
        ((0, (degrees, devices, 3, False, 0)), "0, 1 or 2"),
        (good, "changes an op twice"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sim.native.propose([good, change], None, _core.Method.full)
        same_as_fresh(sim)
    with pytest.raises(ValueError, match="no proposal to accept"):
        sim.native.accept()
    with pytest.raises(ValueError, match="first strategy already"):
        sim.native.begin(sim.strategy.native)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_link_that_is_too_slow_is_refused_and_undone(engine: str) -> None:
    graph, fast = graph_of("gpt2"), ss.Topology.parse("cpu:1x2")
    slow = dataclasses.replace(fast, links=tuple(dataclasses.replace(link, bandwidth=1.0) for link in fast.links))
    whole = {op.name: ss.Configuration() for op in graph.ops}
    away = {op.name: ss.Configuration({}, (number % 2,)) for number, op in enumerate(graph.ops)}
    apart = {graph.ops[0].name: ss.Configuration({"channel": 2}, (0, 0))}
    sim = ss.Simulator(graph, slow, ss.Strategy(graph, slow, whole))
    for _ in range(3):
        with pytest.raises(ss.SoapstoneError, match="cannot be simulated: a task takes longer than"):
            sim.propose(away, engine=engine)
        same_as_fresh(sim)
        assert sim.propose(apart, engine=engine) is not None
        sim.reject()
    with pytest.raises(ss.SoapstoneError, match="cannot be simulated: a task takes longer than"):
        ss.simulate(graph, slow, ss.Strategy(graph, slow, {**whole, **away}))


class Slow(ss.AnalyticCosts):
    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool
    ) -> OpTimes:
        return OpTimes(2**43 - 1, 2**43 - 1, 2**43 - 1, 2**43 - 1)


class Bad(ss.AnalyticCosts):
    def times(
        self, graph: ss.OperatorGraph, index: int, extents: tuple[int, ...], kind: str, combines: bool
    ) -> OpTimes:
        return None  # type: ignore[return-value]


class Odd(ss.AnalyticCosts):
    def update(self, kind: str, optimizer: str) -> tuple[int, float]:
        return -5, float("nan")


def test_what_is_no_simulation_gets_a_sentence() -> None:
    graph, topology = graph_of("mlp"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(graph, topology)
    for make in (ss.Simulator, ss.simulate):
        for wrong, sentence in (
            ((graph, topology, dict(strategy)), "needs a graph, a topology and a strategy"),
            ((graph, "cpu:1x2", strategy), "needs a graph, a topology and a strategy"),
        ):
            with pytest.raises(ss.SoapstoneError, match=sentence):
                make(*wrong)
        for costs, sentence in ((Bad(), "OpTimes are needed"), (Odd(), "both must be 0 or more")):
            with pytest.raises(ss.SoapstoneError, match=sentence):
                make(graph, topology, strategy, training=ss.Training(costs))
    assert ss.Simulator(graph, topology, strategy, training=ss.Training(Slow())).makespan_ns > 2**43


def test_errors_say_what_to_do() -> None:
    sim = start("mlp", "cpu:1x2", seed=0)
    halves = ss.Configuration({"sample": 2}, (0, 1))
    for wrong, sentence in (
        ({"nothing": halves}, "no op 'nothing'"),
        ({"first": ss.Configuration({"sample": 2}, (0, 5))}, "names device 5"),
        ({"first": "halves"}, "needs a Configuration"),
        ([("first", halves)], "takes a mapping"),
        (None, "takes a mapping"),
    ):
        with pytest.raises(ss.SoapstoneError, match=sentence):
            sim.propose(wrong)  # type: ignore[arg-type]
    with pytest.raises(ss.SoapstoneError, match="no engine 'fast'"):
        sim.propose({"first": halves}, engine="fast")
    with pytest.raises(ss.SoapstoneError, match="no proposal to accept"):
        sim.accept()
    with pytest.raises(ss.SoapstoneError, match="limit"):
        sim.propose({"first": halves}, limit=1.5)  # type: ignore[arg-type]
    sim.propose({"first": halves})
    with pytest.raises(ss.SoapstoneError, match="still open"):
        sim.propose({"first": halves})
    sim.reject()
    with pytest.raises(ss.SoapstoneError, match="no proposal to reject"):
        sim.reject()


def test_memory_is_kept_along() -> None:
    """What a change adds on a device and takes from another is what the simulations say."""
    sim = start("gpt2", "p100:2x2", seed=0)
    for changes in islice(moves("gpt2", "p100:2x2", 5), 60):
        before = sim.memory_bound
        sim.propose(changes)
        proposed = sim.memory_bound
        fresh = ss.simulate(sim.graph, sim.topology, sim.strategy.replace(changes), training=sim.training)
        assert np.array_equal(proposed, fresh.memory.bound)
        sim.reject()
        assert np.array_equal(sim.memory_bound, before)
        sim.propose(changes)
        sim.accept()
