"""Predictions held against real runs: five strategies of three models on gloo ranks of this machine, each predicted
with measured op times and calibrated links, then really run, and DistributedDataParallel beside them.

python -m benchmarks.reality [RANKS ...]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import soapstone as ss
from soapstone.parts import keep_freed_memory
from soapstone.runtime.calibration import Calibrator
from soapstone.runtime.transports import GlooTransport
from soapstone.simulator import BUCKET_BYTES

from .steps import Make, Ratio, _classified, cnn, ddp_step, interleaved, our_step, ratio_of

ROUNDS = 10
BUDGET = 10.0  # seconds of search


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


def predictions(graph: ss.OperatorGraph, topology: ss.Topology, folder: Path) -> dict[str, float]:
    """Leave five strategies in a folder, and return what they are predicted to take."""
    costs = ss.MeasuredCosts("cpu", beside=topology.num_devices - 1)
    training: dict[str, Any] = {"costs": costs, "optimizer": "sgd", "bucket_bytes": BUCKET_BYTES}
    strategies = {
        "data": ss.baselines.data_parallel(graph, topology),
        "model": ss.baselines.model_parallel(graph, topology),
        "expert": ss.baselines.expert(graph, topology),
        "random": ss.baselines.random(graph, topology, seed=0),
        "searched": ss.search(graph, topology, budget=BUDGET, **training).strategy,
    }
    for name, strategy in strategies.items():
        strategy.save(folder / f"{name}.json")
    return {name: ss.simulate(graph, topology, strategies[name], **training).makespan for name in strategies}


def compare(make: Make, topology: ss.Topology, rounds: int) -> list[Row]:
    """On every rank; rank 0 predicts, and the others hear of it."""
    graph = ss.capture(make())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told: list[Any] = [None]
        if dist.get_rank() == 0:
            predicted = predictions(graph, topology, folder)
            told = [{name: (predicted[name], (folder / f"{name}.json").read_text()) for name in predicted}]
        dist.broadcast_object_list(told)
        strategies = {}
        for name, (_, text) in told[0].items():
            (folder / f"{name}.json").write_text(text)
            strategies[name] = ss.Strategy.load(folder / f"{name}.json", graph, topology)
    torch.manual_seed(0)
    keep_freed_memory()
    steps = [our_step(make(), graph, strategy) for strategy in strategies.values()]
    own = interleaved(rounds, *steps, ddp_step(make()), before=dist.barrier)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    *ours, ddp = [[max(times) for times in zip(*of_rank)] for of_rank in zip(*everyone)]
    rows = zip(told[0].items(), ours)
    return [Row(name, found[0], statistics.median(times), ratio_of(times, ddp)) for (name, found), times in rows]


def in_order(rows: list[Row]) -> str:
    """How many pairs of strategies are measured in the order that was predicted."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if a.predicted != b.predicted]
    kept = sum((a.predicted < b.predicted) == (a.measured < b.measured) for a, b in pairs)
    return f"{kept} of {len(pairs)}"


def show(name: str, ranks: int, rows: list[Row], table: Table) -> None:
    for row in rows:
        table.add_row(
            f"{name}, {ranks} ranks" if row is rows[0] else "",
            row.name,
            f"{row.predicted * 1e3:.1f} ms",
            f"{row.measured * 1e3:.1f} ms",
            f"{row.error:+.0%}",
            str(row.against_ddp),
            in_order(rows) if row is rows[0] else "",
        )


def on_each_rank(rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    console = Console(width=130, quiet=not first)
    found = Calibrator(GlooTransport(), torch.device("cpu")).run()
    link = found.topology.links[0]
    console.print(
        f"{ranks} ranks: latency {link.latency / 1e3:.0f} us, overhead {link.overhead / 1e3:.0f} us, "
        f"{link.bandwidth / 1e9:.2f} GB/s, {(link.summing or 0) / 1e9:.2f} GB/s in an all-reduce; compute hides "
        f"{1 - found.exposed:.0%} of it"
    )
    errors = []
    for name, make in MODELS.items():
        table = Table("", "strategy", "predicted", "measured", "error", "step against DDP", "pairs in order")
        rows = compare(make, found.topology, rounds)
        show(name, ranks, rows, table)
        console.print(table)
        errors += [abs(row.error) for row in rows]
    console.print(f"Mean error {statistics.mean(errors):.0%}, median {statistics.median(errors):.0%}.\n")
    dist.destroy_process_group()


def main(sizes: Sequence[int] = (2,)) -> None:
    for ranks in sizes:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, *torchrun, "-m", "benchmarks.reality"], env=environment, check=True)


if __name__ == "__main__":
    on_each_rank(ROUNDS) if "RANK" in os.environ else main([int(word) for word in sys.argv[1:]] or [2])
