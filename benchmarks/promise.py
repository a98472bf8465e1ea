"""Checks the promise of `tune`: a step of the strategy that it keeps takes at most 3% longer than one of
DistributedDataParallel. The check fails if some model's strategy is slower than that by more than measurements vary.

python -m benchmarks.promise [--gpu]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import soapstone as ss
from soapstone.runtime.transports import joined
from soapstone.tuning import PROMISE
from soapstone.tuning.race import Ratio

from .launching import launch
from .steps import cnn, mlp, transformer

RANKS = 2
BUDGET, LIMIT = 2.0, 90.0  # seconds of search, and in all, for each model


def bottlenecks() -> ss.Workload:
    return ss.zoo.load("resnet-101", batch=32, blocks=(1, 1, 1, 1))


def models(gpu: bool) -> dict[str, Callable[[], ss.Workload]]:
    """The models by name. The last is ResNet-101 with one block in each stage."""
    found: dict[str, Callable[[], ss.Workload]] = {
        "MLP": mlp,
        "CNN": lambda: cnn(norm=True),
        "transformer": transformer,
    }
    return found | ({"ResNet": bottlenecks} if gpu else {})


def on_each_rank(path: Path) -> None:
    """Tune each model. Rank 0 writes the strategies that were kept, their ratios to DDP, and why the races ended."""
    rows: list[tuple[str, str, tuple[float, ...], str]] = []
    with joined("python -m benchmarks.promise") as (transport, place):
        topology = ss.Topology.parse(f"{'h200' if place.type == 'cuda' else 'cpu'}:1x{RANKS}")
        for name, make in models(place.type == "cuda").items():
            torch.manual_seed(0)  # the same on all ranks
            work = make().on(place)
            found = ss.tune(
                work, ss.capture(work, batch_norm="local"), topology, training=ss.Training(optimizer="sgd"),
                budget=BUDGET, limit=LIMIT, device=place, transport=transport,
            )  # fmt: skip
            assert found.against_ddp is not None, found.rows
            rows.append((name, found.chosen, astuple(found.against_ddp), found.ended))
        if transport.rank == 0:
            path.write_text(json.dumps(rows))


def main(gpu: bool = False) -> bool:
    """Whether the promise holds for all models, as far as measurements can say."""
    table = Table(title=f"The strategies that tune keeps, against DDP on {RANKS} ranks; {PROMISE:g}x is promised")
    for column in ("model", "strategy", "against DDP", "the race ended", "promise"):
        table.add_column(column)
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        if any(statuses := launch(RANKS, gpu, "benchmarks.promise", str(path))):
            raise SystemExit(f"ranks ended with {statuses}")
        for name, chosen, numbers, ended in json.loads(path.read_text()):
            ratio = Ratio(*numbers)
            good = ratio.low <= PROMISE
            is_kept = is_kept and good
            table.add_row(name, chosen, str(ratio), ended, "holds" if good else "broken")
    Console(width=130).print(table)
    return is_kept


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(Path(sys.argv[1]))
    else:
        sys.exit(not main("--gpu" in sys.argv))
