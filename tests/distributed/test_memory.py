"""What ranks really allocate in a step, against the predicted peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import soapstone as ss
from soapstone.simulator.recomputing import runs_of

from .launch import run_processes

SIZES = {"length": 64, "width": 256, "heads": 4, "layers": 6, "vocab": 1000}


@pytest.mark.parametrize("baseline", ["data", "zero1", "fsdp"])
@pytest.mark.parametrize("recompute", [False, True])
def test_ranks_hold_what_is_predicted(baseline: str, recompute: bool, tmp_path: Path) -> None:
    with torch.device("meta"):
        graph = ss.capture(ss.zoo.load("gpt2", batch=16, **SIZES))
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.BASELINES[baseline](graph, topology)
    marked = [graph.ops[op].name for run in runs_of(graph) for op in run] if recompute else []
    strategy = strategy.replace({name: replace(strategy[name], recompute=True) for name in marked})
    training = ss.Training(optimizer="sgd", bucket_bytes=2**20)

    def run(rank: int) -> int:
        torch.manual_seed(0)
        work = ss.zoo.load("gpt2", batch=16, **SIZES)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            parallel = ss.parallelize(work, graph, topology, strategy, training=training)
            for _ in range(2):
                parallel.step(*work.batch)
        return peak_of(profiled)

    predicted = ss.simulate(graph, topology, strategy, training=training).fullest.peak
    for peak in run_processes(2, run, tmp_path / "meeting"):
        if isinstance(peak, Exception):
            raise peak
        assert 0.85 <= peak / predicted <= 1.25, f"{peak / 1e6:.1f} MB where {predicted / 1e6:.1f} are predicted"


def peak_of(profiled: profile) -> int:
    results: Any = getattr(profiled.profiler, "kineto_results", None)
    events = results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    total = most = 0
    for _, change in changes:
        total += change
        most = max(most, total)
    return most
