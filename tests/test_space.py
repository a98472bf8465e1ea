"""The space that a search chooses from, and the baselines in it."""

from __future__ import annotations

from functools import cache
from math import log10

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.space import divisors, factorings
from tests.support.seeds import cases
from tests.zoo.test_zoo import SMALL, workload

TOPOLOGIES = ["p100:1x4", "k80:2x4", "p100:3x2", "h100:1x4+a100:1x8", "cpu:1x1", "cpu:1x7"]


@cache
def graph(name: str) -> ss.OperatorGraph:
    return ss.capture(workload(name))


@pytest.mark.parametrize("name", cases(SMALL, long=["inception-v3"]))
@pytest.mark.parametrize("text", cases(TOPOLOGIES, long=["k80:2x4", "cpu:1x1"]))
def test_every_configuration_is_legal_and_the_baselines_are_among_them(name: str, text: str) -> None:
    topology = ss.Topology.parse(text)
    space = ss.Space(graph(name), topology)
    strategies = [ss.baselines.BASELINES[each](graph(name), topology) for each in ss.baselines.UNSHARDED]
    for op in graph(name).ops:
        found = space.configurations(op.name)
        assert len(set(found)) == len(found)
        for configuration in found[:: max(1, len(found) // 50)]:
            configuration.check(op, topology.num_devices)
        assert all(strategy[op.name] in found for strategy in strategies)
    assert space.log10_size == pytest.approx(sum(log10(len(space.configurations(op.name))) for op in graph(name).ops))


def test_placements_are_aligned_ranges() -> None:
    topology = ss.Topology.parse("k80:2x4")
    placed = {c.devices for c in ss.Space(graph("lenet"), topology).configurations("3.0") if c.num_parts == 2}
    assert placed == {
        (0, 1), (2, 3), (4, 5), (6, 7),  # neighbours
        (0, 4), (1, 5), (2, 6), (3, 7),  # a node apart
        (0, 2), (1, 3), (4, 6), (5, 7),  # over the whole node
    }  # fmt: skip


def test_combinable_dims_are_split_too() -> None:
    found = ss.Space(graph("lenet"), ss.Topology.parse("p100:1x4")).configurations("3.0")
    assert any(c.degrees.get("in") == 4 for c in found)


def test_factorings_are_all_there_are() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    found = list(factorings(4, (("a", 2), ("b", 8))))
    assert found == [{"b": 4}, {"a": 2, "b": 2}]
    assert list(factorings(2, ())) == []


def test_model_parallelism_balances_flops() -> None:
    topology = ss.Topology.parse("p100:1x4")
    strategy = ss.baselines.model_parallel(graph("gpt2"), topology)
    work = [0] * 4
    for op in graph("gpt2").ops:
        (device,) = strategy[op.name].devices
        work[device] += op.flops
    assert max(work) < 0.5 * sum(work)
    layers: dict[str, set[int]] = {}
    for op in graph("rnnlm").ops:
        devices = ss.baselines.model_parallel(graph("rnnlm"), topology)[op.name].devices
        layers.setdefault(op.layer, set()).update(devices)
    assert all(len(devices) == 1 for devices in layers.values())


def test_one_weird_trick_splits_dense_layers_by_channel() -> None:
    topology = ss.Topology.parse("p100:1x2")
    strategy = ss.baselines.expert(graph("alexnet"), topology)
    for op in graph("alexnet").ops:
        wanted = {"channel": 2} if op.kind == "linear" else {"sample": 2}
        assert dict(strategy[op.name].degrees) == wanted, op


def test_recurrent_layers_have_a_device_each_inside_a_node() -> None:
    topology = ss.Topology.parse("p100:2x4")
    strategy = ss.baselines.expert(graph("nmt"), topology)
    cells = {op.layer: strategy[op.name] for op in graph("nmt").ops if op.kind == "lstm_cell"}
    assert [c.devices for c in cells.values()] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert all(dict(c.degrees) == {"sample": 2} for c in cells.values())


def test_megatron_splits_columns_then_rows_inside_a_node() -> None:
    strategy = ss.baselines.expert(graph("llama"), ss.Topology.parse("h100:2x2"))
    degrees = {op.name: dict(strategy[op.name].degrees) for op in graph("llama").ops}
    by_kind = {op.name.rpartition(".")[2]: degrees[op.name] for op in graph("llama").ops}
    assert by_kind["query"] == {"sample": 2, "channel": 2}  # query heads; several share a key head
    assert by_kind["key"] == {"sample": 2, "head": 2}
    assert by_kind["up"] == by_kind["gate"] == {"sample": 2, "channel": 2}
    assert all("sample" in d and len(d) == 2 for name, d in degrees.items() if "attention" in name)
    assert by_kind["out"] == {"sample": 2, "in": 2}
    assert degrees["blocks.0.attention_7"] == {"sample": 2, "head": 2}
    assert by_kind["down"] == {"sample": 2, "in": 2}
    assert by_kind["head"] == {"sample": 2, "channel": 2}


def test_tensor_parallelism_over_more_devices_than_key_heads_shares_query_heads() -> None:
    llama = ss.capture(
        ss.zoo.load("llama", layers=1, width=32, heads=4, key_heads=2, length=8, vocab=40, inner=16, batch=4)
    )
    strategy = ss.baselines.megatron(llama, ss.Topology.parse("h100:2x4"))
    found = {op.kind if op.kind == "attention" else op.name.rpartition(".")[2]: strategy[op.name] for op in llama.ops}
    assert dict(found["attention"].degrees) == {"sample": 2, "head": 2, "rep": 2}
    assert found["attention"].devices == tuple(range(8))
    assert dict(found["key"].degrees) == {"sample": 2, "head": 2}
    assert found["key"].devices == (0, 2, 4, 6)  # each beside the device that has the other query heads
    single = ss.capture(
        ss.zoo.load("llama", layers=1, width=32, heads=4, key_heads=1, length=8, vocab=40, inner=16, batch=4)
    )
    attention = next(op for op in single.ops if op.kind == "attention")
    degrees = dict(ss.baselines.megatron(single, ss.Topology.parse("h100:2x4"))[attention.name].degrees)
    assert degrees == {"sample": 2, "rep": 4}


def test_a_loss_over_all_tokens_in_a_row_is_split_by_sample() -> None:
    """As Hugging Face's language models have it: labels are padded and shifted, then both are made flat."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            shifted = F.pad(tokens, (0, 1), value=-100)[..., 1:].contiguous()
            return F.cross_entropy(self.head(self.token(tokens)).view(-1, 11), shifted.view(-1))

    graph = ss.capture(ss.Workload(Causal(), (torch.zeros(8, 5, dtype=torch.int64),)))
    topology = ss.Topology.parse("p100:1x4")
    for baseline in (ss.baselines.data_parallel, ss.baselines.expert):
        strategy = baseline(graph, topology)
        assert all(len(set(strategy[op.name].devices)) == 4 for op in graph.ops)
    moved = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).moved
    assert moved["transfer"] == 0
