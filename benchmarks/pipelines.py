"""GPT-2 as a pipeline of as many stages as there are ranks, with one microbatch and with twice as many as stages:
predicted with measured op times and calibrated links, then really run, in turns.

python -m benchmarks.pipelines [--gpu] [--out FOLDER] [RANKS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

import soapstone as ss
from soapstone.runtime.transports import joined
from soapstone.simulator.pipelines import op_times

from .launching import launch
from .reality import calibrated, compare

MICROBATCHES = 2  # for each stage


def transformer() -> ss.Workload:
    if torch.cuda.is_available():
        return ss.zoo.load("gpt2", batch=16, length=512)
    return ss.zoo.load("gpt2", batch=16, length=128, layers=4, width=256, heads=4, vocab=2048)


def pipelines(graph: ss.OperatorGraph, topology: ss.Topology, training: ss.Training) -> dict[str, ss.Strategy]:
    sizes = (1, 1, topology.num_devices)
    counts = (1, MICROBATCHES * topology.num_devices)
    usual = ss.baselines.grid(graph, topology, sizes, counts[1])
    work = op_times(ss.simulate(graph, topology, usual, training=training))
    return {f"{m} microbatches": ss.baselines.grid(graph, topology, sizes, m, work) for m in counts}


def on_each_rank(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined("python -m benchmarks.pipelines") as (transport, place):
        topology = calibrated(folder / f"{place.type}-{transport.size}.yaml", transport, place)
        checked = [f"{MICROBATCHES * transport.size} microbatches"]
        rows = compare(transformer, topology, transport, place, pipelines, checked)
        if transport.rank == 0:
            for row in rows:
                times = f"{row.predicted * 1e3:9.1f} ms predicted{row.measured * 1e3:9.1f} ms measured"
                ratios = f"{row.measured / row.predicted:.2f} of the prediction, {row.against_ddp:.2f} of DDP's"
                print(f"{row.name:<18}{times}, {ratios}")
            print(f"{rows[0].measured / rows[-1].measured:.2f} times as fast as one microbatch")


def main(
    ranks: Annotated[int, typer.Argument(help="How many ranks, each a stage.")] = 4,
    gpu: Annotated[bool, typer.Option(help="NCCL ranks that share one GPU, instead of gloo ranks.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of what is calibrated.")] = Path("build/pipelines"),
) -> None:
    """Predict pipelines of GPT-2, run them, and hold the times against each other."""
    out.mkdir(parents=True, exist_ok=True)
    if any(statuses := launch(ranks, gpu, "benchmarks.pipelines", str(out))):
        raise SystemExit(f"ranks ended with {statuses}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(Path(sys.argv[1]))
    else:
        typer.run(main)
