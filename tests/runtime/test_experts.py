"""Experts on several devices: rows that name their expert, read by all and added up; and rows of a fixed capacity,
which travel to their expert and back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.strategy import Configuration
from tests.support.training import assert_same, train_plain, train_threads

SAMPLES, LENGTH, WIDTH, HIDDEN, EXPERTS, CAPACITY = 4, 6, 8, 12, 4, 3


class Capacity(nn.Module):
    """Each sample has so many places at each expert; rows that find none are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        chose = F.one_hot(chosen, EXPERTS)
        place = (chose.cumsum(1) - 1) * chose
        kept = ((place < CAPACITY) & (chose > 0)).unsqueeze(-1)
        sent = (F.one_hot(place.clamp(max=CAPACITY - 1), CAPACITY) * kept).to(x.dtype)
        rows = torch.einsum("blec,bld->ebcd", sent, x)
        hidden = torch.einsum("ebcd,edh->ebch", rows, self.up).relu()
        made = torch.einsum("ebch,ehd->ebcd", hidden, self.down)
        return torch.einsum("blec,ebcd->bld", sent * weights[..., None, None], made)


def workload() -> ss.Workload:
    torch.manual_seed(2)
    x = torch.randn(SAMPLES, LENGTH, WIDTH).double()
    return ss.Workload(Capacity().double(), (x,), loss=lambda y: y.square().mean())


def by_expert(graph: ss.OperatorGraph, topology: ss.Topology) -> ss.Strategy:
    """Data parallelism, but for the products with the experts' weights."""
    devices = tuple(range(topology.num_devices))
    split = {
        op.name: Configuration({dim.name: len(devices)}, devices)
        for op in graph.ops
        for dim in op.dims
        if op.parameters and dim.kind == "parameter" and dim.size == EXPERTS and op.kind in ("einsum", "experts")
    }
    assert split
    return ss.baselines.data_parallel(graph, topology).replace(split)


def test_rows_of_a_fixed_capacity_travel_to_their_expert_and_back() -> None:
    """All-to-all: of what its samples send, a device keeps the part of its own experts."""
    graph, topology = ss.capture(workload()), ss.Topology.parse("cpu:1x2")
    assert graph.unruled == ()
    strategy = by_expert(graph, topology)
    rows = EXPERTS * SAMPLES * CAPACITY * WIDTH * 8
    moved = ss.simulate(graph, topology, strategy).moved
    assert moved["transfer"] == 3 * rows // 2  # half of them: there, back, and the gradient of what came back
    wanted = train_plain(workload(), [workload().batch] * 2)
    for found in train_threads(workload, graph, strategy, [workload().batch] * 2):
        assert_same(found, wanted)


@pytest.mark.parametrize("devices", [2, 4])
def test_experts_weights_lie_on_one_device_each(devices: int) -> None:
    work = ss.zoo.load(
        "mixtral", batch=4, vocab=40, length=6, width=16, heads=4, key_heads=2, inner=24, layers=1, experts=EXPERTS
    )
    graph, topology = ss.capture(work), ss.Topology.parse(f"cpu:1x{devices}")
    data, split = ss.baselines.data_parallel(graph, topology), by_expert(graph, topology)
    weights = 3 * EXPERTS * 16 * 24 * 4
    held = [ss.simulate(graph, topology, strategy).memory.parameters.max() for strategy in (data, split)]
    assert held[0] - held[1] == weights - weights // devices
