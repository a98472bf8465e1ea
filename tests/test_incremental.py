"""The incremental simulator: all engines to the nanosecond, limits that decide as a full simulation does, undo."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import soapstone as ss
from soapstone.costs import OpTimes
from soapstone.simulator import ENGINES

from .chains import SMALL, configurations, graph_of, limit_of, moves, play_all, same_as_fresh, start

TOPOLOGIES = ["cpu:1x2", "cpu:1x5", "k80:2x4", "h100:1x2+a100:1x3", "p100:4x4"]  # shared links, odd counts, mixed kinds
FAMILIES = ["mlp", "cnn", "lstm", "crop", *SMALL]
PROPOSALS = 350  # of each model on each topology: 21,000 in all


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", TOPOLOGIES)
def test_engines_agree_on_every_task_of_every_proposal(name: str, text: str) -> None:
    rng = random.Random(0)
    sim = start(name, text, seed=len(name) + len(text))
    for changes in islice(moves(name, text, 0), PROPOSALS):
        makespan = play_all(sim, changes)
        if rng.random() < 0.3:
            assert sim.propose(changes, engine=rng.choice(ENGINES)) == makespan
            sim.accept()
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


# ---- limits ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", TOPOLOGIES)
@pytest.mark.parametrize("name", ["cnn", "lstm", "crop", "inception-v3", "nmt", "gpt2"])
def test_a_chain_is_the_same_with_limits_and_without(name: str, text: str, engine: str) -> None:
    rng = random.Random(1)
    bounded, unbounded = start(name, text, seed=2), start(name, text, seed=2)
    first = current = bounded.makespan_ns
    for changes in islice(moves(name, text, 3), 120):
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
        changes = {op: data.draw(st.sampled_from(options[op])) for op in ops}
        limit = data.draw(st.none() | st.integers(0, 2 * sim.makespan_ns))
        fresh = ss.simulate(sim.graph, sim.topology, strategy.replace(changes))
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
            raise ss.SoapstoneError("no")
        return super().times(graph, index, extents, kind, combines)


def test_what_fails_leaves_the_simulator_as_it_was() -> None:
    graph, topology = graph_of("mlp"), ss.Topology.parse("cpu:1x2")
    whole = ss.Strategy(graph, topology, {op.name: ss.Configuration() for op in graph.ops})
    sim = ss.Simulator(graph, topology, whole, costs=Moody())
    halves = ss.Configuration({"sample": 2}, (0, 1))
    with pytest.raises(ss.SoapstoneError, match="no"):
        sim.propose({"first": halves, "second": halves})
    same_as_fresh(sim)
    assert sim.propose({"first": halves}) is not None
    sim.accept()
    same_as_fresh(sim)


def test_the_core_checks_what_it_is_given() -> None:
    sim = start("mlp", "cpu:1x2", seed=0)
    configuration = sim.strategy.native[0]
    for changes in (
        [(99, configuration)],
        [(0, configuration), (0, configuration)],
        [(0, (configuration[0], [0] * 9))],
    ):
        with pytest.raises(ValueError, match=r"op|device"):
            sim.native.propose(changes, None, 0)
        same_as_fresh(sim)
    with pytest.raises(ValueError, match="no proposal"):
        sim.native.accept()
    with pytest.raises(ValueError, match="already"):
        sim.native.begin(sim.strategy.native)


def test_errors_say_what_to_do() -> None:
    sim = start("mlp", "cpu:1x2", seed=0)
    halves = ss.Configuration({"sample": 2}, (0, 1))
    for wrong, sentence in (
        ({"nothing": halves}, "no op 'nothing'"),
        ({"first": ss.Configuration({"sample": 2}, (0, 5))}, "names device 5"),
        ({"first": "halves"}, "needs a Configuration"),
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
        fresh = ss.simulate(sim.graph, sim.topology, sim.strategy.replace(changes))
        assert np.array_equal(proposed, fresh.memory.bound)
        sim.reject()
        assert np.array_equal(sim.memory_bound, before)
        sim.propose(changes)
        sim.accept()
