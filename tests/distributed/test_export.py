"""Exported code, run by torch alone on gloo ranks, gives the losses and gradients of one device."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import soapstone as ss
from soapstone.exporting import to_dtensor

from .launch import run_processes

RANKS = 4
SIZES = {"length": 8, "width": 16, "heads": 4, "layers": 2, "vocab": 32}
MODELS = {"gpt2": SIZES, "llama": SIZES | {"key_heads": 4, "inner": 32}}


def workload(name: str) -> ss.Workload:
    torch.manual_seed(0)
    work = ss.zoo.load(name, batch=8, **MODELS[name])
    return replace(work, model=work.model.double())


def strategy_of(name: str, machine: str, baseline: str, recompute: bool) -> ss.Strategy:
    graph, topology = ss.capture(workload(name)), ss.Topology.parse(machine)
    strategy = ss.baselines.BASELINES[baseline](graph, topology)
    marked = [op.name for op in graph.ops if recompute and op.name.startswith("blocks.1")]
    return strategy.replace({each: replace(strategy[each], recompute=True) for each in marked})


@pytest.mark.parametrize(("name", "machine", "baseline", "recompute"), [
    ("gpt2", "h100:2x2", "megatron", True), ("llama", "h100:1x4", "fsdp", True),
    pytest.param("gpt2", "h100:1x4", "megatron", False, marks=pytest.mark.long),
    pytest.param("llama", "h100:2x2", "megatron", False, marks=pytest.mark.long),
    pytest.param("gpt2", "h100:1x4", "data", False, marks=pytest.mark.long),
])  # fmt: skip
def test_the_code_computes_what_one_device_does(
    name: str, machine: str, baseline: str, recompute: bool, tmp_path: Path
) -> None:
    export = to_dtensor(strategy_of(name, machine, baseline, recompute), "A test.")
    assert ("partial(checkpoint" in export.text) == recompute
    code = compile(export.text, "exported.py", "exec")

    def run(rank: int) -> tuple[float, dict[str, torch.Tensor]]:
        exported: dict[str, Any] = {}
        exec(code, exported)
        work = workload(name)
        model: nn.Module = exported["parallelize"](work.model)
        inputs, targets = ([exported["own"](x) for x in given] for given in (work.inputs, work.targets))
        assert work.loss is not None
        with (
            exported["implicit_replication"](),
            sdpa_kernel(SDPBackend.MATH),
        ):  # DTensors have no rule for the CPU's flash attention
            loss = work.loss(exported["run"](model, *inputs), *targets)
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        return float(total) / RANKS, gradients

    plain = workload(name)
    wanted = plain.compute_loss(*plain.batch)
    wanted.backward()  # type: ignore[no-untyped-call]
    for found in run_processes(RANKS, run, tmp_path / "meeting"):
        if isinstance(found, Exception):
            raise found
        loss, gradients = found
        assert loss == pytest.approx(wanted.item(), rel=1e-12)
        for each, parameter in plain.model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(gradients[each], parameter.grad, rtol=1e-9, atol=1e-12)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return copy.copy(tensor.full_tensor()) if isinstance(tensor, DTensor) else tensor


class Tower(nn.Module):
    """A weight that two blocks share, and a list of parameters."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.blocks[1][0].weight = self.blocks[0][0].weight  # type: ignore[index]
        self.norm = norm(6)
        self.scales = nn.ParameterList([torch.ones(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.norm(x) * self.scales[0]
        return found


def tower(loss: str, norm: type[nn.Module] = nn.LayerNorm) -> ss.Workload:
    torch.manual_seed(0)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    return ss.Workload(Tower(norm), (x,), loss=partial(nn.functional.mse_loss, reduction=loss), targets=(y,))


@pytest.mark.parametrize("loss", ["sum", pytest.param("mean", marks=pytest.mark.long)])
def test_sums_and_shared_weights_of_blocks(loss: str, tmp_path: Path) -> None:
    graph, topology = ss.capture(tower(loss)), ss.Topology.parse("h100:1x2")
    export = to_dtensor(ss.baselines.fsdp(graph, topology), "A test.")
    assert "'blocks.2'" in export.text
    assert "'blocks.0'" not in export.text  # whose weight is the root's, too
    code = compile(export.text, "exported.py", "exec")

    def run(rank: int) -> dict[str, torch.Tensor]:
        exported: dict[str, Any] = {}
        exec(code, exported)
        work = tower(loss)
        model: nn.Module = exported["parallelize"](work.model)
        assert work.loss is not None
        given = [exported["own"](x) for x in work.batch]
        work.loss(exported["run"](model, given[0]), given[1]).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(ValueError, match="7 samples cannot be cut"):
            exported["own"](torch.zeros(7))
        return {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}

    plain = tower(loss)
    plain.compute_loss(*plain.batch).backward()  # type: ignore[no-untyped-call]
    for gradients in run_processes(2, run, tmp_path / "meeting"):
        if isinstance(gradients, Exception):
            raise gradients
        for name, parameter in plain.model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6)


def test_statistics_of_the_whole_batch_are_told() -> None:
    graph, topology = ss.capture(tower("mean", nn.BatchNorm1d)), ss.Topology.parse("h100:1x2")
    told = to_dtensor(ss.baselines.data_parallel(graph, topology), "A test.").differences
    assert told == ["norm has the statistics of the whole batch; here each rank has its own samples'"]


def test_a_style_is_for_the_blocks_that_have_it() -> None:
    strategy = strategy_of("llama", "h100:1x4", "megatron", False)
    other = {"blocks.1.up": replace(strategy["blocks.1.norm1"], shard="none")}
    export = to_dtensor(strategy.replace(other), "A test.")
    assert "'blocks.0.up': ColwiseParallel" in export.text
    assert "'blocks.1.up': SequenceParallel" in export.text
    assert "'blocks.*.down': RowwiseParallel" in export.text


def test_columns_and_rows_have_their_styles() -> None:
    export = to_dtensor(strategy_of("llama", "h100:2x2", "megatron", False), "A test.")
    assert export.mesh == (2, 2)
    assert export.styles["blocks.0.attention.query"].startswith("ColwiseParallel")
    assert export.styles["blocks.0.down"].startswith("RowwiseParallel")
    assert export.styles["blocks.0.norm1"].startswith("SequenceParallel")
    assert "'blocks.*.attention.query'" in export.text
    assert not export.differences


def test_what_no_mesh_has_is_told_by_op() -> None:
    strategy = strategy_of("llama", "h100:1x4", "data", False)
    odd = {
        "blocks.0.up": ss.Configuration({"sample": 2, "channel": 2}, (3, 2, 1, 0)),
        "blocks.1.up": ss.Configuration({}, (2,)),
        "head": replace(strategy["head"], shard="all"),
    }
    told = to_dtensor(strategy.replace(odd), "A test.").differences
    assert told == [
        "blocks.0.up is split by channel and sample on 3, 2, 1, 0; here only its samples are",
        "blocks.1.up is whole on 2; here only its samples are",
        "head shards its weights; here it is as the others",
    ]
