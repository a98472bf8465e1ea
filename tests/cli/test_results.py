"""What the predicting commands say beside the time: devices that idle, throughput, the strategy and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import soapstone as ss
from soapstone.costs import peak_flops
from soapstone.loading import Request, load_graph
from tests.cli.conftest import Soapstone
from tests.support.models import captured

SMALL = ("rnnlm", "--batch", "4", *(f"--size={size}" for size in ("vocab=9", "length=3", "hidden=4", "layers=1")))
FAR = ("-t", "p100:2x1")
QUICK = ("--proposals", "2000")


def test_a_strategy_on_some_of_the_devices_says_so(soapstone: Soapstone) -> None:
    topology = ss.Topology.parse("p100:2x1")
    slow = tuple(replace(link, latency=10**9) for link in topology.links)
    replace(topology, links=slow).save("slow.yaml")
    case = ("lenet", "--batch", "2", "-t", "slow.yaml")
    assert "It uses 1 of 2 devices." in soapstone("search", *case, *QUICK).out
    assert "soapstone uses 1 of 2 devices." in soapstone("compare", *case, *QUICK).out
    found = json.loads(soapstone("search", *case, *QUICK, "--json").out)
    assert (found["devices_used"], found["devices"]) == (1, 2)
    assert "The strategy uses 1 of 2 devices." in soapstone("simulate", *case, "-s", found["path"]).out
    assert "devices." not in soapstone("simulate", *case).out


def test_a_search_keeps_what_it_found(soapstone: Soapstone, tmp_path: Path) -> None:
    for name in ("rnnlm.p100-2x1.json", "rnnlm.p100-2x1-2.json"):
        assert f"Written to {name}." in soapstone("search", *SMALL, *FAR, *QUICK).err
        assert soapstone("simulate", *SMALL, *FAR, "-s", name).status == 0
    third = json.loads(soapstone("search", *SMALL, *FAR, *QUICK, "--json").out)
    assert third["path"] == "rnnlm.p100-2x1-3.json"
    assert third["strategy"] == json.loads((tmp_path / third["path"]).read_text())
    before = set(tmp_path.iterdir())
    left = soapstone("search", *SMALL, *FAR, *QUICK, "--no-save", "--json")
    assert json.loads(left.out)["path"] is None
    assert set(tmp_path.iterdir()) == before


def test_a_search_that_could_not_be_kept_does_not_begin(
    soapstone: Soapstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give one of them" in soapstone("search", *SMALL, *FAR, "-o", "s.json", "--no-save").complaint
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "name a file with -o, or pass --no-save" in soapstone("search", *SMALL, *FAR).complaint


def test_simulate_has_the_strategy_for_machines(soapstone: Soapstone) -> None:
    found = json.loads(soapstone("simulate", *SMALL, *FAR, "--json").out)["strategy"]
    assert found["default"] == {"degrees": {"sample": 2}, "devices": "0-1"}


def test_throughput_follows_from_the_time(soapstone: Soapstone) -> None:
    found = json.loads(soapstone("simulate", *SMALL, *FAR, "--json").out)
    assert found["samples_per_second"] == pytest.approx(4 / found["makespan"])
    assert found["tokens_per_second"] == pytest.approx(4 * 3 / found["makespan"])
    assert 0 < found["mfu"] < 1
    text = soapstone("simulate", *SMALL, *FAR).out
    assert f"{found['samples_per_second']:,.1f} samples/s, {found['tokens_per_second']:,.0f} tokens/s" in text
    assert "of the devices' peak (MFU)" in text
    for words in (("search", *QUICK, "--no-save"), ("compare", "--methods", "data")):
        assert {"tokens/s", "MFU"} <= set(soapstone(*words, *SMALL, *FAR).out.split())
    assert "samples/s" in soapstone("compare", "lenet", *FAR, "--methods", "data").out.split()


def test_utilisation_is_the_flops_over_the_peak() -> None:
    graph, topology = captured("mlp"), ss.Topology.parse("p100:1x2")
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    done = sum(op.flops * (3 if op.backward else 1) for op in graph.ops)
    dtype = graph.ops[0].values[-1].dtype
    peak = {"float32": 10.6e12, "float64": 5.3e12}[dtype]
    assert sim.throughput.mfu == pytest.approx(done / (sim.makespan * 2 * peak))
    assert sim.throughput.tokens is None


def test_convolutions_are_held_against_the_peak_that_they_run_at() -> None:
    """TF32 by PyTorch's default, on devices that have it."""
    graph = load_graph(Request("resnet-101", 2))
    flops = sum(op.flops * (1 + 2 * op.backward) for op in graph.ops)
    for kind, precision in (("h200", "tf32"), ("p100", "float32")):
        topology = ss.Topology.parse(f"{kind}:1x1")
        sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
        assert sim.throughput.mfu == pytest.approx(flops / (sim.makespan * (peak_flops(kind, precision) or 0)))
    assert (peak_flops("h200", "tf32") or 0) > 5 * (peak_flops("h200", "float32") or 0)


def test_a_proof_has_time_and_says_what_it_lacks(soapstone: Soapstone) -> None:
    words = ("search", "lenet", "-t", "p100:1x4", "--method", "exhaustive", "--no-save")
    assert "For a proof, give it more time with --budget." in soapstone(*words, "--budget", "0.001").out
    assert "600 for exhaustive" in " ".join(soapstone("search", "--help").out.split())


def test_frozen_weights_have_no_gradient_to_count() -> None:
    """LoRA's frozen layer passes a gradient on, and has none of its own; the layer before the adapter has neither."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    graph = ss.capture(model, (torch.randn(8, 32),), loss=torch.sum)
    topology = ss.Topology.parse("h100:1x1")
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    first, adapter, last, *rest = (op.flops for op in graph.ops)
    done = first + 3 * adapter + 2 * last + 3 * sum(rest)
    assert sim.throughput.mfu == pytest.approx(done / (sim.makespan * (peak_flops("h100", "float32") or 0)))
