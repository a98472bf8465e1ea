"""Predictions held against real runs: five strategies of three models on gloo ranks of this machine, each predicted
with measured op times and calibrated links, then really run, and DistributedDataParallel beside them.

python -m benchmarks.reality [RANKS ...]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import soapstone as ss
from soapstone.parts import keep_freed_memory
from soapstone.runtime.calibration import Calibration, Calibrator
from soapstone.runtime.processes import ProcessTransport
from soapstone.simulator import BUCKET_BYTES
from tests.distributed.launch import run_processes

from .steps import Make, Ratio, _classified, cnn, ddp_step, interleaved, our_step, ratio_of

ROUNDS = 15
BUDGET = 15.0  # seconds of search


def language_model() -> ss.Workload:
    return ss.zoo.load("rnnlm", batch=32, hidden=1024, length=10)


def dense_part() -> ss.Workload:
    """AlexNet behind its convolutions."""
    layers = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return _classified(nn.Sequential(*layers), torch.randn(64, 9216), 1000)


MODELS: dict[str, Make] = {"RNNLM": language_model, "AlexNet's dense part": dense_part, "CNN": cnn}


@dataclass(frozen=True)
class Row:
    name: str
    predicted: float
    measured: float
    against_ddp: Ratio

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def on_ranks(ranks: int, act: Callable[[int], Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = run_processes(ranks, act, Path(folder) / "meeting", timeout=500)
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found


def calibrated(ranks: int) -> Calibration:
    def act(rank: int) -> Calibration:
        torch.set_num_threads(1)
        return Calibrator(ProcessTransport(), torch.device("cpu")).run()

    found: Calibration = on_ranks(ranks, act)[0]
    return found


def strategies_of(graph: ss.OperatorGraph, topology: ss.Topology, costs: ss.MeasuredCosts) -> dict[str, ss.Strategy]:
    searched = ss.search(graph, topology, costs=costs, budget=BUDGET, optimizer="sgd", bucket_bytes=BUCKET_BYTES)
    return {
        "data": ss.baselines.data_parallel(graph, topology),
        "model": ss.baselines.model_parallel(graph, topology),
        "expert": ss.baselines.expert(graph, topology),
        "random": ss.baselines.random(graph, topology, seed=0),
        "searched": searched.strategy,
    }


def compare(make: Make, topology: ss.Topology, costs: ss.MeasuredCosts, rounds: int) -> list[Row]:
    graph = ss.capture(make())
    strategies = strategies_of(graph, topology, costs)
    predicted = {
        name: ss.simulate(graph, topology, strategy, costs=costs, optimizer="sgd", bucket_bytes=BUCKET_BYTES).makespan
        for name, strategy in strategies.items()
    }

    def act(rank: int) -> list[list[float]]:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        keep_freed_memory()
        steps = [our_step(make(), graph, strategy) for strategy in strategies.values()]
        return interleaved(rounds, *steps, ddp_step(make()), before=dist.barrier)

    found = on_ranks(topology.num_devices, act)
    *ours, ddp = [[max(times) for times in zip(*of_rank)] for of_rank in zip(*found)]
    rows = zip(strategies, ours)
    return [Row(name, predicted[name], statistics.median(times), ratio_of(times, ddp)) for name, times in rows]


def show(name: str, ranks: int, rows: list[Row], table: Table) -> None:
    order = sorted(rows, key=lambda row: row.predicted) == sorted(rows, key=lambda row: row.measured)
    for row in rows:
        table.add_row(
            f"{name}, {ranks} ranks" if row is rows[0] else "",
            row.name,
            f"{row.predicted * 1e3:.1f} ms",
            f"{row.measured * 1e3:.1f} ms",
            f"{row.error:+.0%}",
            str(row.against_ddp),
            ("kept" if order else "not kept") if row is rows[0] else "",
        )


def main(sizes: list[int], rounds: int = ROUNDS) -> None:
    torch.set_num_threads(1)
    console = Console(width=130)
    for ranks in sizes:
        costs = ss.MeasuredCosts("cpu", beside=ranks - 1)
        found = calibrated(ranks)
        link = found.topology.links[0]
        console.print(
            f"{ranks} ranks: latency {link.latency / 1e3:.0f} us, overhead {link.overhead / 1e3:.0f} us, "
            f"{link.bandwidth / 1e9:.2f} GB/s, {(link.summing or 0) / 1e9:.2f} GB/s in an all-reduce; compute hides "
            f"{1 - found.exposed:.0%} of it"
        )
        table = Table("", "strategy", "predicted", "measured", "error", "step against DDP", "order")
        errors = []
        for name, make in MODELS.items():
            rows = compare(make, found.topology, costs, rounds)
            show(name, ranks, rows, table)
            errors += [abs(row.error) for row in rows]
        console.print(table)
        console.print(f"Mean error {statistics.mean(errors):.0%}, median {statistics.median(errors):.0%}.\n")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [2])
