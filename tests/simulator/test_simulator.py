"""What a simulation reports: busy shares, the critical path, memory, and the trace."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.simulator import BACKWARD, FORWARD, KINDS
from tests.support.chains import launches_of
from tests.support.models import CASES, MORE

ALL = CASES | MORE
TOPOLOGIES = ["p100:1x3", "k80:2x4", "cpu:1x5", "h100:1x2+a100:1x3"]


@cache
def graph(name: str) -> ss.OperatorGraph:
    return ss.capture(ALL[name].workload())


def simulated(name: str, text: str, seed: int) -> ss.Simulation:
    topology = ss.Topology.parse(text)
    return ss.simulate(graph(name), topology, ss.baselines.random(graph(name), topology, seed=seed))


on_random_strategies = pytest.mark.parametrize(
    ("name", "text", "seed"),
    [(name, text, seed) for seed, name in enumerate(ALL) for text in TOPOLOGIES],
)


@on_random_strategies
def test_the_critical_path_explains_the_makespan(name: str, text: str, seed: int) -> None:
    """Its first task begins as soon as its host has launched it, and each begins no later than the one before it lets
    go, or than its host, which launched the one before it, has launched it."""
    sim = simulated(name, text, seed)
    path = sim.critical_path
    rows = sim.tasks[path]
    launches = launches_of(sim)
    assert rows["ready"][0] <= rows["start"][0] == max(launches[path[0]], default=0)
    assert rows["end"][-1] == sim.makespan_ns
    for before, after in pairwise(path):
        waits = before in sim.predecessors(after) and sim.tasks["end"][before] == sim.tasks["ready"][after]
        held = {(resource, start + hold) for resource, start, hold in sim.resources(before)}
        wanted = {(resource, start) for resource, start, _ in sim.resources(after)}
        launched = {r for (r, *_), ns in zip(sim.resources(before), launches[before]) if ns}
        follows = {r for (r, *_), ns in zip(sim.resources(after), launches[after]) if ns}
        assert waits or held & wanted or launched & follows
    assert 0 <= sim.exposed_communication <= sim.makespan


@on_random_strategies
def test_busy_shares_are_what_the_holds_add_up_to(name: str, text: str, seed: int) -> None:
    sim = simulated(name, text, seed)
    wanted = dict.fromkeys(sim.topology.resources, 0)
    for row in range(len(sim.tasks)):
        for resource, _, hold in sim.resources(row):
            wanted[resource] += hold
    assert sim.busy == pytest.approx({name: held / sim.makespan_ns for name, held in wanted.items()})
    compute = [d.name for d in sim.topology.devices]
    assert sim.compute_time <= sum(wanted[name] for name in compute) * 1e-9 + 1e-12


@on_random_strategies
def test_the_peak_stays_below_the_bound(name: str, text: str, seed: int) -> None:
    memory = simulated(name, text, seed).memory
    static = memory.parameters + memory.gradients + memory.states
    assert (static <= memory.peak).all()
    assert (memory.peak <= memory.bound).all()
    most = 40 * sum(tensor.bytes for tensor in graph(name).tensors) + 10**6
    assert (memory.bound - memory.workspace).max() < most


@on_random_strategies
def test_a_search_and_a_simulation_find_the_same_peak(name: str, text: str, seed: int) -> None:
    sim = simulated(name, text, seed)
    native = ss.Simulator(sim.graph, sim.topology, sim.strategy).native
    assert np.array_equal(native.peak(2, 1) + sim.memory.workspace, sim.memory.peak)


@on_random_strategies
def test_what_fills_the_fullest_device_is_its_peak(name: str, text: str, seed: int) -> None:
    sim = simulated(name, text, seed)
    full = sim.fullest
    assert full.peak == sim.memory.peak[full.device] == sum(full.kinds.values())
    assert sum(full.ops.values()) <= full.peak


def two_layers() -> ss.OperatorGraph:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False))
    return ss.capture(model, (torch.randn(10, 8),), loss=torch.sum)


def test_memory_by_hand() -> None:
    """Two layers and a sum on one device, in float32."""
    found, topology = two_layers(), ss.Topology.parse("cpu:1x1")
    sim = ss.simulate(found, topology, ss.baselines.data_parallel(found, topology))
    weights = 4 * (8 * 16 + 16 * 4)
    x, hidden, out, loss = 4 * 80, 4 * 160, 4 * 40, 4
    memory = sim.memory
    assert (memory.parameters[0], memory.gradients[0], memory.states[0]) == (weights, weights, 2 * weights)
    assert memory.saved[0] == x + hidden
    assert memory.made[0] == hidden + out + loss
    second = hidden + 4 * 64 + out  # what the second layer reads and makes
    assert memory.transient[0] == weights + max(x + 4 * 128 + hidden, second, out + loss)
    assert memory.workspace[0] == 0
    # The peak is the second layer's backward: both inputs are saved, the gradients of its output, input and weight are
    # there, and the first layer's are not. The update holds all weights' gradients, and a root of one of the states.
    backward = x + hidden + out + hidden + 4 * 64
    assert memory.peak[0] == 3 * weights + max(backward, 2 * weights)
    assert sim.peak_memory == [int(memory.peak[0])]


def test_optimizers_keep_different_states() -> None:
    found, topology = two_layers(), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(found, topology)
    peaks = {
        name: ss.simulate(found, topology, strategy, training=ss.Training(optimizer=name)).peak_memory[0]
        for name in ("sgd", "momentum", "adam")
    }
    weights = found.facts.parameter_bytes
    assert peaks["momentum"] - peaks["sgd"] == peaks["adam"] - peaks["momentum"] == weights


def test_splitting_the_batch_splits_what_is_saved() -> None:
    name, topology = "gpt", ss.Topology.parse("p100:1x4")
    one = ss.simulate(graph(name), topology, ss.Strategy(graph(name), topology, dict.fromkeys(
        (op.name for op in graph(name).ops), ss.Configuration()))).memory  # fmt: skip
    four = ss.simulate(graph(name), topology, ss.baselines.data_parallel(graph(name), topology)).memory
    assert np.count_nonzero(one.saved) == 1
    assert four.saved.max() < 0.4 * one.saved.max()
    assert four.parameters.max() == one.parameters.max()


def test_a_trace_has_a_row_for_each_device_and_direction(tmp_path: Path) -> None:
    sim = simulated("cnn", "k80:2x4", 1)
    ss.report.save_trace(sim, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names == sim.topology.resources
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(sim.native.hold_rows)
    assert max(e["ts"] + e["dur"] for e in spans) <= sim.makespan * 1e6 + 1
    for resource in range(len(names)):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == resource)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(own))  # one at a time
    assert {e["cat"] for e in spans} <= set(KINDS)
    kinds = sim.tasks["kind"]
    on_devices = sum(e["pid"] == 1 for e in spans)
    assert on_devices >= np.isin(kinds, (FORWARD, BACKWARD)).sum()


def test_a_trace_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ss.SoapstoneError, match="cannot write"):
        ss.report.save_trace(simulated("mlp", "p100:1x3", 0), tmp_path / "absent" / "t.json")
