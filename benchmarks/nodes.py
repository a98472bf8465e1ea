"""Compares predictions with real runs on several nodes, for three models: data parallelism, a pipeline across the
nodes, and the strategy that a search finds. The nodes are network namespaces of this machine, with adapters of limited
bandwidth. The ranks share its GPU and communicate over NCCL, or are CPU processes and communicate over gloo. Nothing is
fitted to these models.

python -m benchmarks.nodes [--shape 2x4] [--gbit 8] [--out FOLDER]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

import soapstone as ss
from soapstone.runtime.transports import joined

from .accuracy import Row, read, show, write
from .launching import on_nodes
from .reality import BUDGET, calibrated, compare
from .steps import Make

ROUNDS = 8
LIMIT = 0.25  # the largest error of a prediction, as a fraction of a step


def language_model() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("rnnlm", batch=512, length=10)
    return ss.zoo.load("rnnlm", batch=32, hidden=512, length=6)


def transformer() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("gpt2", batch=32, length=512, layers=4, vocab=16384)
    return ss.zoo.load("gpt2", batch=8, length=64, layers=4, width=256, heads=4, vocab=2048)


def images() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("alexnet", batch=128)
    return ss.zoo.load("lenet", batch=256)


MODELS: dict[str, Make] = {"RNNLM": language_model, "GPT-2, small": transformer, "CNN": images}


def strategies_of(graph: ss.OperatorGraph, topology: ss.Topology, training: ss.Training) -> dict[str, ss.Strategy]:
    nodes = len({device.node for device in topology.devices})
    return {
        "data": ss.baselines.data_parallel(graph, topology),
        "pipeline": ss.baselines.baseline(f"dp{topology.num_devices // nodes}-pp{nodes}-m4", graph, topology),
        "searched": ss.search(graph, topology, budget=BUDGET, training=training).strategy,
    }


def on_each_rank(folder: Path, only: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with joined("python -m benchmarks.nodes") as (transport, place):
        start = time.perf_counter()
        topology = calibrated(folder / "nodes.yaml", transport, place)
        if transport.rank == 0:
            print(f"Calibrated in {time.perf_counter() - start:.0f} s.", flush=True)
        found: dict[str, list[Row]] = {}
        for model, make in MODELS.items():
            if only and model not in only:
                continue
            found[model] = compare(make, topology, transport, place, strategies_of, (), ROUNDS)
            if transport.rank == 0:
                write(folder / "nodes.json", {name: [asdict(row) for row in rows] for name, rows in found.items()})
                show(f"{place.type}, {transport.size} ranks", {model: found[model]})


def main(
    shape: Annotated[str, typer.Option(help="NODESxRANKS.")] = "2x2",
    gbit: Annotated[float, typer.Option(help="Gb/s that a node's adapter passes each way.")] = 4,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the calibration and the results.")] = Path("build/nodes"),
) -> None:
    """Calibrate several nodes, predict three strategies of three models, run them, and compare."""
    out.mkdir(parents=True, exist_ok=True)
    statuses = on_nodes(shape, gbit, "benchmarks.nodes", str(out), *(model or []))
    if any(statuses):
        raise SystemExit(f"ranks ended with {statuses}; earlier results are in {out}")
    found = {model: [Row(**row) for row in rows] for model, rows in read(out / "nodes.json").items()}
    show(f"{shape} ranks, {gbit:g} Gb/s a node", found)
    errors = [abs(row.error) for rows in found.values() for row in rows]
    print(f"{sum(error <= LIMIT for error in errors)} of {len(errors)} predictions are within {LIMIT:.0%}.")


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(Path(sys.argv[1]), sys.argv[2:])
    else:
        typer.run(main)
