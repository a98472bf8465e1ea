"""Exported code, run by torch alone on gloo ranks, gives the losses and gradients of one device."""

from __future__ import annotations

import copy
from dataclasses import replace
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


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "machine", "baseline", "recompute"), [
    ("gpt2", "h100:1x4", "megatron", False), ("gpt2", "h100:2x2", "megatron", True),
    ("llama", "h100:2x2", "megatron", False), ("llama", "h100:1x4", "fsdp", True), ("gpt2", "h100:1x4", "data", False),
])  # fmt: skip
def test_the_code_computes_what_one_device_does(
    name: str, machine: str, baseline: str, recompute: bool, tmp_path: Path
) -> None:
    export = to_dtensor(strategy_of(name, machine, baseline, recompute), "A test.")
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
        "head shares its weights; here it is as the others",
    ]
