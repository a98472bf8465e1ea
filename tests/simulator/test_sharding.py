"""Parameters that their holders share: what is summed and gathered when, and what each device keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone import _core
from soapstone.costs import OpTimes
from soapstone.errors import StrategyError
from soapstone.simulator import GATHER, SYNC, Simulation
from soapstone.strategy import SHARDS
from tests.support.chains import graph_of
from tests.support.layers import BATCH, LAYERS, WIDTH, layers

ONE_BY_ONE = ss.Training(optimizer="adam", bucket_bytes=0)


def simulated(shard: str, devices: str = "p100:1x4", training: ss.Training = ONE_BY_ONE) -> Simulation:
    graph, topology = layers(), ss.Topology.parse(devices)
    data = ss.baselines.data_parallel(graph, topology)
    strategy = data.replace({op: replace(data[op], shard=shard) for op in data})
    return ss.simulate(graph, topology, strategy, training=training)


def rows_of(sim: Simulation, kind: _core.Kind) -> list[int]:
    return [int(row) for row in np.flatnonzero(sim.tasks["kind"] == kind)]


def gathers(sim: Simulation, *, backward: bool) -> dict[int, int]:
    """The row of each gather, by op."""
    tasks = ((row, sim.native.task(row)) for row in rows_of(sim, GATHER))
    return {task.op: row for row, task in tasks if task.backward == backward}


# ---- what happens ----


def test_a_sum_leaves_a_share_and_weights_are_gathered() -> None:
    none, optimizer, whole = (simulated(shard) for shard in SHARDS)
    assert [len(rows_of(sim, GATHER)) for sim in (none, optimizer, whole)] == [0, LAYERS, 2 * LAYERS]
    size = 4 * WIDTH * WIDTH * 3  # bytes of a layer that three others send or are sent
    assert [sim.moved["sync"] for sim in (none, optimizer, whole)] == [2 * LAYERS * size, LAYERS * size, LAYERS * size]
    assert [sim.moved["gather"] for sim in (none, optimizer, whole)] == [0, LAYERS * size, 2 * LAYERS * size]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_weights_are_gathered_so_many_groups_ahead(ahead: int) -> None:
    """By hand: the gather of layer i waits for the forward of layer i - 1 - k, in backward for the backward of layer
    i + 1 + k or the loss, and for nothing else; its own forward or backward waits for it."""
    sim = simulated("all", training=replace(ONE_BY_ONE, groups_ahead=ahead))
    forward, backward = gathers(sim, backward=False), gathers(sim, backward=True)
    loss = len(sim.graph.ops) - 1

    def waits(row: int) -> set[tuple[str, int]]:
        return {(task.kind.name, task.op) for task in map(sim.native.task, sim.predecessors(row))}

    for op in range(LAYERS):
        before, after = op - 1 - ahead, op + 1 + ahead
        assert waits(forward[op]) == ({("forward", before)} if before >= 0 else set())
        last = sim.native.task(next(iter(sim.predecessors(backward[op])))).kind.name
        assert waits(backward[op]) == ({("backward", after)} if after < LAYERS else {(last, loss)})
        for task in map(sim.native.task, range(len(sim.native))):
            if task.op == op and task.kind.name in ("forward", "backward"):
                assert ({"forward": forward, "backward": backward}[task.kind.name][op]) in task.after


def test_what_is_gathered_ahead_is_hidden() -> None:
    """Where layers take longer than their gathers, waiting for the layer before shows them all."""
    slow = ss.Training(Slow(), bucket_bytes=0)
    at_once, ahead = (simulated("all", training=replace(slow, groups_ahead=k)).makespan_ns for k in (0, 1))
    gather = simulated("all", training=slow).tasks
    one = gather["end"][gather["kind"] == GATHER] - gather["start"][gather["kind"] == GATHER]
    # Forward shows all gathers but its first, which both show; backward likewise.
    assert at_once - ahead == pytest.approx(2 * (LAYERS - 1) * one[0], rel=0.05)


class Slow(ss.AnalyticCosts):
    def times(self, *about: object) -> OpTimes:
        return OpTimes(10**6, 10**6, 0, 0)


# ---- what each device keeps ----


def test_holders_keep_shares() -> None:
    weights = LAYERS * 4 * WIDTH * WIDTH
    none, optimizer, whole = (simulated(shard).memory for shard in SHARDS)
    assert [m.parameters.tolist() for m in (none, optimizer, whole)] == 2 * [[weights] * 4] + [[weights // 4] * 4]
    assert [m.states.tolist() for m in (none, optimizer, whole)] == [[2 * weights] * 4] + 2 * [[weights // 2] * 4]
    assert [m.gathered.tolist() for m in (none, optimizer, whole)] == [[0] * 4, [0] * 4, [weights] * 4]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_gathered_weights_come_and_go(ahead: int) -> None:
    """Beside shares, no more than those of a layer and of so many layers ahead lie on a device."""
    sim = simulated("all", training=replace(ONE_BY_ONE, groups_ahead=ahead))
    held = sim.native.holdings(sim.timeline, 0)
    device, content, _, since, until, sizes = (np.asarray(column) for column in held)
    mine = (device == 0) & (content == 5)
    layer = 4 * WIDTH * WIDTH
    assert set(sizes[mine].tolist()) == {layer}
    times = np.unique(since[mine])
    most = max(int(sizes[mine & (since <= t) & (t < until)].sum()) for t in times)
    assert most == (1 + ahead) * layer


def test_uneven_shares_add_up() -> None:
    """65 by 7 elements among 4: three hold 114, the last 113; and what is smaller than its holders are many."""
    model = nn.Sequential(nn.Linear(7, 65, bias=False), nn.Linear(65, 2))
    graph = ss.capture(ss.Workload(model, (torch.zeros(BATCH, 7),), loss=torch.sum))
    topology = ss.Topology.parse("p100:1x4")
    data = ss.baselines.data_parallel(graph, topology)
    sim = ss.simulate(graph, topology, data.replace({op: replace(data[op], shard="all") for op in data}))
    sizes = [[114, 114, 114, 113], [33, 33, 33, 31], [1, 1, 0, 0]]
    assert sim.memory.parameters.tolist() == [4 * sum(column) for column in zip(*sizes)]


def test_a_part_of_a_weight_that_one_device_holds_is_not_shared() -> None:
    graph, topology = layers(), ss.Topology.parse("p100:1x4")
    split, whole = ss.Configuration({"channel": 4}, (0, 1, 2, 3), "all"), ss.Configuration()
    chosen = {op.name: split if op.kind == "linear" else whole for op in graph.ops}
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, chosen), training=ONE_BY_ONE)
    assert rows_of(sim, GATHER) == rows_of(sim, SYNC) == []


# ---- strategies ----


def test_ops_without_parameters_shard_none() -> None:
    strategy = simulated("all").strategy
    assert [strategy[op.name].shard for op in strategy.graph.ops] == ["all"] * LAYERS + ["none"]


def test_ops_that_share_a_weight_must_agree() -> None:
    graph, topology = graph_of("lstm"), ss.Topology.parse("cpu:1x2")
    data = ss.baselines.data_parallel(graph, topology)
    with pytest.raises(StrategyError, match=r"'embed' and 'project' share .* differently"):
        data.replace({"embed": replace(data["embed"], shard="all")})


@pytest.mark.parametrize("shard", ["some", "", None, 1, [], True])
def test_an_unknown_shard_is_told(shard: object) -> None:
    with pytest.raises(StrategyError, match="shard must be one of none, optimizer, all"):
        ss.Configuration({}, (0,), shard)  # type: ignore[arg-type]
