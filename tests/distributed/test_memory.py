"""What ranks really allocate in a step, against the predicted peak."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

import soapstone as ss
from soapstone.simulator.recomputing import runs_of

from .launch import run_processes

STEPS = 4


def gpt2() -> ss.Workload:
    torch.manual_seed(0)
    return ss.zoo.load("gpt2", batch=16, length=64, width=256, heads=4, layers=6, vocab=1000)


def convolutions() -> ss.Workload:
    """With batch norm over the samples of all ranks."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(4)]
    x, y = torch.randn(16, 16, 32, 32), torch.randn(16, 16, 32, 32)
    return ss.Workload(nn.Sequential(*blocks), (x,), loss=nn.functional.mse_loss, targets=(y,))


@pytest.mark.parametrize(("make", "baseline", "recompute"), [
    (gpt2, "data", True), (convolutions, "data", False),
    *(pytest.param(gpt2, *case, marks=pytest.mark.long)
      for case in (("data", False), ("fsdp", True), ("zero1", False), ("zero1", True), ("fsdp", False))),
])  # fmt: skip
def test_ranks_hold_what_is_predicted(
    make: Callable[[], ss.Workload], baseline: str, recompute: bool, tmp_path: Path
) -> None:
    graph = ss.capture(make())
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.BASELINES[baseline](graph, topology)
    marked = [graph.ops[op].name for run in runs_of(graph) for op in run] if recompute else []
    strategy = strategy.replace({name: replace(strategy[name], recompute=True) for name in marked})
    training = ss.Training(optimizer="sgd", bucket_bytes=2**20)

    def run(rank: int) -> int:
        made, held, peaks = make(), 0, []
        for step in range(STEPS):
            dist.barrier()
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                if step == 0:
                    work = replace(made, model=deepcopy(made.model))  # in memory that is counted
                    parallel = ss.parallelize(work, graph, topology, strategy, training=training)
                parallel.step(*work.batch)
            most, change = held_in(profiled)
            peaks.append(held + most)
            held += change
        return min(peaks[1:])  # gloo's collectives have copies of their own, which last until the slowest rank has come

    predicted = ss.simulate(graph, topology, strategy, training=training).fullest.peak
    for peak in run_processes(2, run, tmp_path / "meeting"):
        if isinstance(peak, Exception):
            raise peak
        assert 0.85 <= peak / predicted <= 1.3, f"{peak / 1e6:.1f} MB where {predicted / 1e6:.1f} are predicted"


def held_in(profiled: profile) -> tuple[int, int]:
    """How many bytes more are held than at the beginning: at the peak, and at the end."""
    results: Any = getattr(profiled.profiler, "kineto_results", None)
    events = results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    total = most = 0
    for _, change in changes:
        total += change
        most = max(most, total)
    return most, total
