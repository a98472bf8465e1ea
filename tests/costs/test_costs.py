"""Analytic costs: near published figures, and honest about small and thin parts."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import torch
from torch import nn

import soapstone as ss
from benchmarks.anchors import ANCHORS, Anchor, predicted
from soapstone.costs import device_kinds
from soapstone.rules import RULES, UNRULED, facts_of
from soapstone.topology import preset_names

CHECKED = [anchor for anchor in ANCHORS if anchor.name == "Inception-v3" and anchor.batch == 64]


@pytest.mark.long
@pytest.mark.parametrize("anchor", CHECKED, ids=lambda anchor: anchor.kind)
def test_inception_trains_as_fast_as_was_published(anchor: Anchor, capsys: pytest.CaptureFixture[str]) -> None:
    for devices, published in anchor.published.items():
        found = predicted(anchor, devices)
        with capsys.disabled():
            print(f"\n{devices} {anchor.kind}: {found:.0f} images/s predicted, {published} published")
        assert 0.75 <= found / published <= 1.25


@cache
def linear(batch: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> ss.OperatorGraph:
    model, x = nn.Linear(inputs, outputs, dtype=dtype), torch.randn(batch, inputs, dtype=dtype)
    return ss.capture(model, (x,), loss=torch.sum)


def forward(extents: tuple[int, ...], kind: str = "p100", dtype: torch.dtype = torch.float32) -> int:
    return ss.AnalyticCosts().times(linear(4096, 4096, 4096, dtype), 0, extents, kind, False).forward


def test_half_the_work_takes_more_than_half_the_time() -> None:
    whole = forward((4096, 4096, 4096))
    for shrunk in (1, 2, 4, 8, 16, 32):
        part = forward((4096 // shrunk, 4096, 4096))
        assert part >= whole / shrunk * 0.999
    assert forward((64, 4096, 4096)) > 1.1 * whole / 64
    assert forward((64, 64, 4096)) > forward((64, 64, 64)) >= 8000  # never less than its launches


def test_a_thin_part_is_slower_than_a_square_one_of_the_same_flops() -> None:
    assert forward((16, 4096, 4096)) > forward((256, 256, 4096))


def test_half_precision_is_faster_where_the_device_has_it() -> None:
    whole = (4096, 4096, 4096)
    assert forward(whole, "h100", torch.bfloat16) < forward(whole, "h100") / 5
    assert forward(whole, "k80", torch.bfloat16) >= forward(whole, "k80") / 2.1


def test_every_preset_has_costs() -> None:
    assert set(preset_names()) <= set(device_kinds())
    graph = linear(64, 32, 32)
    for name in preset_names():
        topology = ss.Topology.parse(f"{name}:1x2")
        assert ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).makespan > 0


def test_the_first_layer_has_no_gradient_for_its_data() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    graph = ss.capture(model, (torch.randn(512, 512),), loss=torch.sum)
    first, second = (ss.AnalyticCosts().times(graph, i, (512, 512, 512), "p100", False) for i in (0, 1))
    assert first.forward == second.forward
    assert second.backward == pytest.approx(2 * first.backward, rel=1e-3)


def test_unknown_devices_and_optimizers_get_a_sentence() -> None:
    with pytest.raises(ss.SoapstoneError, match="no analytic costs for devices of kind 'abacus'; there are p100"):
        forward((1, 1, 1), "abacus")
    with pytest.raises(ss.SoapstoneError, match="no costs for optimizer 'magic'; there are sgd"):
        ss.AnalyticCosts().update("p100", "magic")


def test_a_rule_of_a_family_without_costs_is_an_error_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    stray = replace(RULES["linear"], family="quantum")  # type: ignore[arg-type]
    monkeypatch.setitem(RULES, "linear", stray)
    monkeypatch.delitem(sys.modules, "soapstone.costs.analytic")
    with pytest.raises(ss.SoapstoneError, match="no costs for 'quantum', the family of 'linear'; there are dense"):
        import_module("soapstone.costs.analytic")


def test_an_op_that_no_table_has_is_as_fast_as_memory() -> None:
    assert facts_of("logcumsumexp") is UNRULED
    assert facts_of("logcumsumexp").family == "pointwise"


@pytest.mark.parametrize("shape", [(1, 64, 7, 7), (2, 64, 1, 1), (8, 1, 7, 7), (1, 1, 3, 1)])
def test_a_batch_norm_with_an_axis_of_size_one_has_a_time(shape: tuple[int, ...]) -> None:
    """It works channel by channel, whichever of its axes have no dim."""
    model, x = nn.BatchNorm2d(shape[1]), torch.randn(shape)
    graph = ss.capture(model, (x,), loss=torch.sum)
    wide = ss.capture(nn.BatchNorm2d(256), (torch.randn(shape[0], 256, *shape[2:]),), loss=torch.sum)
    topology = ss.Topology.parse("p100:1x1")
    times = [ss.simulate(g, topology, ss.baselines.data_parallel(g, topology)).makespan for g in (graph, wide)]
    assert 0 < times[0] <= times[1]
