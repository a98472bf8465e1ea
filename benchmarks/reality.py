"""Predictions held against real runs: five strategies of three models on ranks of this machine, each predicted with
measured op times and calibrated links, then really run, and DistributedDataParallel beside them. The ranks talk over
gloo, or share one GPU and talk over NCCL.

python -m benchmarks.reality [--gpu] [RANKS ...]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import soapstone as ss
from soapstone.parts import keep_freed_memory
from soapstone.runtime import Transport
from soapstone.runtime.calibration import Calibrator
from soapstone.runtime.checking import check
from soapstone.runtime.sharing import run_ranks, shared_gpu
from soapstone.runtime.transports import joined
from soapstone.tuning.steps import ddp_step

from .steps import Make, Ratio, _classified, cnn, interleaved, our_step, ratio_of

ROUNDS = 15
BUDGET = 10.0  # seconds of search


def language_model() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("rnnlm", batch=64, length=10)
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


def predictions(graph: ss.OperatorGraph, topology: ss.Topology, folder: Path, place: torch.device) -> dict[str, float]:
    """Leave five strategies in a folder, and return what they are predicted to take."""
    beside = topology.num_devices - 1 if place.type == "cpu" else 0
    costs = ss.MeasuredCosts(place.type, beside=beside)
    training = ss.Training(costs, "sgd")
    strategies = {
        "data": ss.baselines.data_parallel(graph, topology),
        "model": ss.baselines.model_parallel(graph, topology),
        "expert": ss.baselines.expert(graph, topology),
        "random": ss.baselines.random(graph, topology, seed=0),
        "searched": ss.search(graph, topology, budget=BUDGET, training=training).strategy,
    }
    for name, strategy in strategies.items():
        strategy.save(folder / f"{name}.json")
    return {name: ss.simulate(graph, topology, strategies[name], training=training).makespan for name in strategies}


def compare(make: Make, topology: ss.Topology, rounds: int, transport: Transport, place: torch.device) -> list[Row]:
    """On every rank; rank 0 predicts, and the others hear of it."""

    def made() -> ss.Workload:
        torch.manual_seed(0)  # alike on all ranks
        return make().on(place)

    graph = ss.capture(made())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = None
        if transport.rank == 0:
            predicted = predictions(graph, topology, folder, place)
            told = {name: (predicted[name], (folder / f"{name}.json").read_text()) for name in predicted}
        told = transport.exchange(told)[0]
        strategies = {}
        for name, (_, text) in told.items():
            (folder / f"{name}.json").write_text(text)
            strategies[name] = ss.Strategy.load(folder / f"{name}.json", graph, topology)
    if place.type == "cuda":  # a search may have chosen what a step of cuDNN's with fewer digits would hide
        for name in ("model", "searched"):
            sentence = check(made(), graph, strategies[name], transport=transport, place=place, seed=0)
            if transport.rank == 0:
                print(f"{name}: {sentence}", flush=True)
    keep_freed_memory()
    steps = [our_step(made(), graph, strategy, transport) for strategy in strategies.values()]
    steps = [waited(step, place) for step in (*steps, ddp_step(made()))]
    own = interleaved(rounds, *steps, before=lambda: transport.exchange(None))
    *ours, ddp = [[max(times) for times in zip(*of_rank)] for of_rank in zip(*transport.exchange(own))]
    rows = zip(told.items(), ours)
    return [Row(name, found[0], statistics.median(times), ratio_of(times, ddp)) for (name, found), times in rows]


def waited(step: Callable[[], object], place: torch.device) -> Callable[[], object]:
    """A step until its device is done."""

    def act() -> None:
        step()
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    return act


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
    with joined("python -m benchmarks.reality") as (transport, place):
        ranks, first = transport.size, transport.rank == 0
        console = Console(width=130, quiet=not first)
        found = Calibrator(transport, place).run()
        link = found.topology.links[0]
        console.print(
            f"{ranks} ranks on {place.type}: latency {link.latency / 1e3:.0f} us, "
            f"overhead {link.overhead / 1e3:.0f} us, {link.bandwidth / 1e9:.2f} GB/s, "
            f"{(link.summing or 0) / 1e9:.2f} GB/s in an all-reduce; compute hides {1 - found.exposed:.0%} of it"
        )
        errors = []
        for name, make in MODELS.items():
            table = Table("", "strategy", "predicted", "measured", "error", "step against DDP", "pairs in order")
            rows = compare(make, found.topology, rounds, transport, place)
            show(name, ranks, rows, table)
            console.print(table)
            errors += [abs(row.error) for row in rows]
        console.print(f"Mean error {statistics.mean(errors):.0%}, median {statistics.median(errors):.0%}.\n")


def main(sizes: Sequence[int] = (2,), gpu: bool = False) -> None:
    for ranks in sizes:
        if gpu:
            with shared_gpu(ranks) as environments:
                statuses = run_ranks([sys.executable, "-m", "benchmarks.reality"], environments)
            if any(statuses):
                raise SystemExit(f"ranks ended with {statuses}")
            continue
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, *torchrun, "-m", "benchmarks.reality"], env=environment, check=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(ROUNDS)
    else:
        main([int(word) for word in sys.argv[1:] if word != "--gpu"] or [2], gpu="--gpu" in sys.argv)
