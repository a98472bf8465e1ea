"""Predictions held against real runs: eight strategies of five models on ranks of this machine, each predicted with
measured op times and calibrated links, then really run, and DistributedDataParallel beside them. The ranks talk over
gloo, or share one GPU and talk over NCCL.

python -m benchmarks.reality [--gpu] [--out FOLDER] [RANKS ...]

The folder gets what was calibrated and found, model by model: what is there already is not run again.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

import soapstone as ss
from soapstone.parts import keep_freed_memory
from soapstone.report.breakdown import breakdown_of
from soapstone.runtime import Transport
from soapstone.runtime.calibration import Calibrator
from soapstone.runtime.checking import check
from soapstone.runtime.transports import joined
from soapstone.tuning.steps import ddp_step

from .accuracy import Row, read, show, write
from .launching import launch, waited
from .steps import Make, _classified, cnn, interleaved, our_step, ratio_of

ROUNDS = {"cuda": 15, "cpu": 6}
BUDGET = 10.0  # seconds of search


def language_model() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("rnnlm", batch=64, length=10)
    return ss.zoo.load("rnnlm", batch=32, hidden=1024, length=10)


def dense_part() -> ss.Workload:
    """AlexNet behind its convolutions."""
    layers = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return _classified(nn.Sequential(*layers), torch.randn(64, 9216), 1000)


def transformer() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("gpt2", batch=8, length=512, layers=4, vocab=16384)
    return ss.zoo.load("gpt2", batch=8, length=128, layers=2, width=512, heads=8, vocab=8192)


def translation() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("nmt", batch=64, length=8)
    return ss.zoo.load("nmt", batch=32, length=6, hidden=512, vocab=8000)


MODELS: dict[str, Make] = {
    "RNNLM": language_model,
    "AlexNet's dense part": dense_part,
    "CNN": cnn,
    "GPT-2, small": transformer,
    "NMT": translation,
}


def strategies_of(graph: ss.OperatorGraph, topology: ss.Topology, training: ss.Training) -> dict[str, ss.Strategy]:
    found = {
        "data": ss.baselines.data_parallel(graph, topology),
        "model": ss.baselines.model_parallel(graph, topology),
        "expert": ss.baselines.expert(graph, topology),
    }
    found |= {f"random {seed}": ss.baselines.random(graph, topology, seed=seed) for seed in range(3)}
    found["paper"] = ss.search(graph, topology, method="paper", budget=BUDGET / 4, training=training).strategy
    found["searched"] = ss.search(graph, topology, budget=BUDGET, training=training).strategy
    return found


Choose = Callable[[ss.OperatorGraph, ss.Topology, ss.Training], dict[str, ss.Strategy]]


def predictions(
    choose: Choose, graph: ss.OperatorGraph, topology: ss.Topology, folder: Path, place: torch.device
) -> dict[str, Row]:
    """Leave the strategies in a folder, and return what they are predicted to take."""
    beside = topology.num_devices - 1 if place.type == "cpu" else 0
    training = ss.Training(ss.MeasuredCosts(place.type, beside=beside), "sgd")
    found = {}
    for name, strategy in choose(graph, topology, training).items():
        strategy.save(folder / f"{name}.json")
        sim = ss.simulate(graph, topology, strategy, training=training)
        found[name] = Row(name, sim.makespan, max(breakdown_of(sim).compute) * 1e-9)
    return found


def compare(
    make: Make, topology: ss.Topology, transport: Transport, place: torch.device, choose: Choose = strategies_of,
    checked: Sequence[str] = ("model", "searched"), rounds: int | None = None,
) -> list[Row]:  # fmt: skip
    """On every rank; rank 0 predicts, and the others hear of it. On GPUs some are held against one device first."""

    def made() -> ss.Workload:
        torch.manual_seed(0)  # alike on all ranks
        return make().on(place)

    graph = ss.capture(made())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = None
        if transport.rank == 0:
            rows = predictions(choose, graph, topology, folder, place)
            told = {name: (row, (folder / f"{name}.json").read_text()) for name, row in rows.items()}
        told = transport.exchange(told)[0]
        strategies = {}
        for name, (_, text) in told.items():
            (folder / f"{name}.json").write_text(text)
            strategies[name] = ss.Strategy.load(folder / f"{name}.json", graph, topology)
    if place.type == "cuda":  # a search may have chosen what a step of cuDNN's with fewer digits would hide
        for name in checked:
            sentence = check(made(), graph, strategies[name], transport=transport, place=place, seed=0)
            if transport.rank == 0:
                print(f"{name}: {sentence}", flush=True)
    keep_freed_memory()
    steps = [our_step(made(), graph, strategy, transport) for strategy in strategies.values()]
    steps = [waited(step, place) for step in (*steps, ddp_step(made()))]
    own = interleaved(rounds or ROUNDS[place.type], *steps, before=lambda: transport.exchange(None))
    *ours, ddp = [[max(times) for times in zip(*of_rank)] for of_rank in zip(*transport.exchange(own))]
    found = [row for row, _ in told.values()]
    return [row.measured_as(statistics.median(times), ratio_of(times, ddp).value) for row, times in zip(found, ours)]


def calibrated(path: Path, transport: Transport, place: torch.device) -> ss.Topology:
    """As it was calibrated before, or now."""
    if not transport.exchange(path.exists())[0]:
        found = Calibrator(transport, place).run()
        if transport.rank == 0:
            found.topology.save(path)
            print(f"{transport.size} ranks on {place.type}, calibrated; unsure: {len(found.unsure)}", flush=True)
    topology: ss.Topology = transport.exchange(ss.Topology.load(path) if transport.rank == 0 else None)[0]
    return topology


def on_each_rank(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined("python -m benchmarks.reality") as (transport, place):
        name = f"{place.type}-{transport.size}"
        topology = calibrated(folder / f"{name}.yaml", transport, place)
        for model, make in MODELS.items():
            done = transport.exchange(read(folder / f"{name}.json"))[0]
            if model in done:
                continue
            rows = compare(make, topology, transport, place)
            if transport.rank == 0:
                write(folder / f"{name}.json", {**done, model: [asdict(row) for row in rows]})
                show(name, {model: rows})


def main(
    ranks: Annotated[
        list[int] | None, typer.Argument(help="How many ranks, one run for each number; 2 by default.")
    ] = None,
    gpu: Annotated[bool, typer.Option(help="NCCL ranks that share one GPU, instead of gloo ranks.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of what is calibrated and found.")] = Path("build/reality"),
) -> None:
    """Predict eight strategies of five models, run them, and hold the times against each other."""
    if gpu and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; leave out --gpu")
    out.mkdir(parents=True, exist_ok=True)
    for size in ranks or [2]:
        name = f"{'cuda' if gpu else 'cpu'}-{size}"
        if MODELS.keys() - read(out / f"{name}.json"):
            statuses = launch(size, gpu, "benchmarks.reality", str(out))
            if any(statuses):
                raise SystemExit(f"ranks ended with {statuses}; what was found before is in {out}")
        found = read(out / f"{name}.json")
        show(name, {model: [Row(**row) for row in rows] for model, rows in found.items()}, out / f"{name}.png")


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(Path(sys.argv[1]))
    else:
        typer.run(main)
