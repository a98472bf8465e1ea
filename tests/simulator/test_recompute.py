"""Ops that are recomputed: what their backward takes, and what is kept for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.errors import StrategyError
from soapstone.simulator import BACKWARD, FORWARD, Simulation, least_recomputed, runs_of
from tests.support.chains import graph_of
from tests.support.layers import BATCH, LAYERS, WIDTH, layers

OUTPUT = 4 * WIDTH * BATCH  # bytes of what a layer makes


def simulated(*marked: int, devices: tuple[int, ...] = (0,)) -> Simulation:
    """Every layer split by sample over these devices, and some of them recomputed."""
    graph, topology = layers(), ss.Topology.parse("p100:1x2")
    degrees = {"sample": len(devices)}
    chosen = {
        op.name: ss.Configuration(degrees, devices, recompute=i in marked).fitted(op) for i, op in enumerate(graph.ops)
    }
    return ss.simulate(graph, topology, ss.Strategy(graph, topology, chosen))


def durations(sim: Simulation, kind: int) -> list[int]:
    """Of the first part of each op, in the order of the ops."""
    found = {}
    for row in np.flatnonzero(sim.tasks["kind"] == kind):
        task = sim.native.task(int(row))
        if task.part == 0 and not task.finish:
            found[task.op] = sim.resources(int(row))[0][2]
    return [found[op] for op in sorted(found)]


def activations_at(sim: Simulation, when: int) -> int:
    """Bytes on device 0 that ops made or keep."""
    columns: list[Any] = [np.asarray(column) for column in sim.native.holdings(sim.timeline, 0)]
    device, content, _, since, until, size = columns
    return int(size[(device == 0) & (content == 0) & (since <= when) & (when < until)].sum())


def start_of_backward(sim: Simulation, op: int) -> int:
    rows = sim.tasks[(sim.tasks["kind"] == BACKWARD) & (sim.tasks["op"] == op)]
    return int(rows["start"][0])


@pytest.mark.parametrize("devices", [(0,), (0, 1)])
def test_backward_does_forward_again(devices: tuple[int, ...]) -> None:
    plain, again = simulated(devices=devices), simulated(1, 2, 4, devices=devices)
    forward, backward = durations(plain, FORWARD), durations(plain, BACKWARD)
    assert durations(again, FORWARD) == forward
    expected = [b + (f if i in (1, 2, 4) else 0) for i, (f, b) in enumerate(zip(forward, backward))]
    assert durations(again, BACKWARD) == expected


def test_what_is_between_boundaries_goes_and_comes_again() -> None:
    """By hand: layers 0, 1, 3 and 4 are recomputed, 2 and 5 are boundaries. At the loss there are the batch and what
    layers 2 and 5 made; when layer 5's backward begins, what layers 3 and 4 made is there again, and the loss has no
    use for what layer 5 made; when layer 2's begins, what layers 0 and 1 made."""
    plain, again = simulated(), simulated(0, 1, 3, 4)
    last = len(again.graph.ops) - 1
    assert activations_at(plain, start_of_backward(plain, last)) == LAYERS * OUTPUT  # and the batch, less the last
    assert activations_at(again, start_of_backward(again, last)) == 2 * OUTPUT
    assert activations_at(again, start_of_backward(again, 5)) == 4 * OUTPUT
    assert activations_at(again, start_of_backward(again, 2)) == 3 * OUTPUT
    assert (again.memory.bound >= plain.memory.bound).all()


def test_all_recomputed_are_one_stretch() -> None:
    """Only the batch is kept, and all comes again when backward begins."""
    again = simulated(*range(LAYERS))
    assert activations_at(again, start_of_backward(again, len(again.graph.ops) - 1) - 1) <= 2 * OUTPUT
    assert activations_at(again, start_of_backward(again, 5)) == LAYERS * OUTPUT


def test_what_came_from_another_device_stays() -> None:
    graph, topology = layers(), ss.Topology.parse("p100:1x2")
    places = [0, 0, 0, 1, 1, 1, 1]
    chosen = {
        op.name: ss.Configuration({}, (place,), recompute=i < LAYERS)
        for i, (op, place) in enumerate(zip(graph.ops, places))
    }
    sim = ss.simulate(graph, topology, ss.Strategy(graph, topology, chosen))
    device, content, op, _, until, size = (np.asarray(c) for c in sim.native.holdings(sim.timeline, 0))
    mine = (device == 1) & (content == 0) & (op == 2)  # what layer 2 made, on the other device
    assert size[mine].tolist() == [OUTPUT]
    assert until[mine][0] >= start_of_backward(sim, 3)


def test_ops_without_a_backward_are_not_recomputed() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(torch.relu(self.first(x)))
            return found

    graph = ss.capture(ss.Workload(Frozen(), (torch.zeros(2, 4),), loss=torch.sum))
    topology = ss.Topology.parse("cpu:1x1")
    data = ss.baselines.data_parallel(graph, topology)
    marked = data.replace({name: replace(data[name], recompute=True) for name in data})
    assert [marked[op.name].recompute for op in graph.ops] == [op.backward for op in graph.ops]
    assert {op.backward for op in graph.ops} == {True, False}


@pytest.mark.parametrize("recompute", ["yes", 1, None])
def test_what_is_neither_true_nor_false_is_told(recompute: object) -> None:
    with pytest.raises(StrategyError, match="recompute must be true or false"):
        ss.Configuration({}, (0,), recompute=recompute)  # type: ignore[arg-type]


# ---- the least that fits ----


def test_runs_lie_between_tensors_that_lead_on_alone() -> None:
    assert runs_of(layers()) == []  # every layer is such a cut
    gpt2 = graph_of("gpt2")
    runs = runs_of(gpt2)
    assert len(runs) == 4  # attention and products, twice
    assert {gpt2.ops[op].layer.split(".")[1] for op in runs[0]} == {"0"}
    assert [op for run in runs for op in run] == sorted({op for run in runs for op in run})
    outputs = [gpt2.ops[run[-1] + 1] for run in runs]
    assert all(op.kind == "linear" for op in outputs)  # with the sum that ends a half of a block


@pytest.mark.parametrize("share", [0.95, 0.8])
def test_no_more_is_recomputed_than_must_be(share: float) -> None:
    graph, roomy = graph_of("gpt2"), ss.Topology.parse("p100:1x2")
    plain = ss.simulate(graph, roomy, ss.baselines.data_parallel(graph, roomy))
    ledger = plain.memory.peak - plain.memory.workspace
    memory = int(plain.memory.workspace[0] + share * ledger.max())
    tight = replace(roomy, devices=tuple(replace(device, memory=memory) for device in roomy.devices))
    sim = ss.simulate(graph, tight, ss.baselines.data_parallel(graph, tight))
    assert not sim.fits
    found = least_recomputed(sim)
    marked = {op for op in graph.ops if found.strategy[op.name].recompute}
    assert found.fits
    assert marked
    for run in runs_of(graph):
        names = [graph.ops[op].name for op in run]
        if found.strategy[names[0]].recompute:
            less = found.strategy.replace({n: replace(found.strategy[n], recompute=False) for n in names})
            assert not ss.simulate(graph, tight, less).fits
            break


def test_what_fits_stays_as_it_is() -> None:
    sim = simulated()
    assert least_recomputed(sim) is sim


def test_a_model_without_runs_stays_as_it_is() -> None:
    plain = simulated()
    memory = plain.memory
    least = int((memory.parameters + memory.states + memory.workspace).max())
    tight = replace(plain.topology, devices=tuple(replace(d, memory=least + 1) for d in plain.topology.devices))
    sim = ss.simulate(plain.graph, tight, ss.baselines.data_parallel(plain.graph, tight))
    assert not sim.fits
    assert least_recomputed(sim) is sim
