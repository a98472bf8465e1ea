"""The predicted peak of memory against what the allocator of NCCL ranks saw, under each technique that saves some:
sharded state, sharded weights, recomputation, and a stage for each rank with few microbatches in flight. The ranks
share one GPU; each counts its own bytes.

python -m benchmarks.peaks [--measure RANKS [--only pp]]   (without: predicts what stands in
benchmarks/data/peaks_h200.json)"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

import soapstone as ss
from soapstone.loading import Request, load_graph, load_workload
from soapstone.runtime import Transport
from soapstone.runtime.transports import joined
from soapstone.simulator.recomputing import runs_of

from .launching import launch

DATA = Path(__file__).parent / "data" / "peaks_h200.json"
STEPS = 3


class Case(NamedTuple):
    """A model in float32, or under autocast; `batch` is a rank's."""

    model: str
    batch: int
    precision: str | None = None


CASES = (Case("gpt2", 8), Case("llama", 1), Case("resnet-101", 32), Case("nmt", 32), Case("gpt2", 8, "autocast"))
BASELINES = ("data", "zero1", "fsdp")
FREE = ", all in flight"  # a pipeline without windows
PIPELINED, MICROBATCHES = "gpt2", 8


def techniques(case: Case, ranks: int) -> list[tuple[str, bool]]:
    """Baselines, with and without recomputation."""
    stages = f"pp{ranks}-m{MICROBATCHES}"
    pipelines = [(stages, False), (stages + FREE, False)] if case.model == PIPELINED else []
    return [*((baseline, again) for baseline in BASELINES for again in (False, True)), *pipelines]


def request(case: Case, ranks: int) -> Request:
    return Request(case.model, case.batch * ranks, options={"precision": case.precision} if case.precision else {})


def planned(graph: ss.OperatorGraph, topology: ss.Topology, baseline: str, recompute: bool) -> ss.Strategy:
    """A baseline; all runs recomputed, where that is asked for."""
    strategy = ss.baselines.baseline(baseline.removesuffix(FREE), graph, topology)
    if baseline.endswith(FREE):
        strategy = strategy.replace({name: replace(each, in_flight=None) for name, each in strategy.items()})
    names = [graph.ops[op].name for run in runs_of(graph) for op in run] if recompute else []
    return strategy.replace({name: replace(strategy[name], recompute=True) for name in names})


def predicted(case: Case, ranks: int, baseline: str, recompute: bool) -> ss.Simulation:
    graph, topology = load_graph(request(case, ranks)), ss.Topology.parse(f"h200:1x{ranks}")
    strategy = planned(graph, topology, baseline, recompute)
    return ss.simulate(graph, topology, strategy, training=ss.Training(optimizer="adamw"))


def measured(case: Case, baseline: str, recompute: bool, transport: Transport, place: torch.device) -> int:
    """The most bytes that a rank has in the steps after the first."""
    wanted = request(case, transport.size)
    graph, topology = load_graph(wanted), ss.Topology.parse(f"h200:1x{transport.size}")
    torch.manual_seed(0)
    work = load_workload(wanted)  # on the host, as the model should be whose weights are shared
    batch = [tensor.to(place) for tensor in work.batch]
    strategy = planned(graph, topology, baseline, recompute)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, device=place)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-5)
    for count in range(STEPS):
        if count == 1:
            torch.cuda.reset_peak_memory_stats(place)
        parallel.step(*batch)
        optimizer.step()
    return int(max(transport.exchange(torch.cuda.max_memory_allocated(place))))


def on_each_rank(path: Path, only: str) -> None:
    """Measures those whose baseline's name begins so, and keeps what else is known."""
    with joined("python -m benchmarks.peaks") as (transport, place):
        known = json.loads(path.read_text())["rows"] if only else []
        rows: list[list[object]] = [row for row in known if not str(row[4]).startswith(only)]
        for case in CASES:
            for baseline, again in techniques(case, transport.size):
                if not baseline.startswith(only):
                    continue
                rows.append([*case, transport.size, baseline, again, measured(case, baseline, again, transport, place)])
                gc.collect()
                if transport.rank == 0:
                    print(rows[-1], flush=True)
                    path.write_text(written(rows))


def written(rows: list[list[object]]) -> str:
    """A row a line."""
    about = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": str(date.today()),
        "what": "torch.cuda.max_memory_allocated of the fullest rank in steps with AdamW; NCCL ranks of one GPU",
        "columns": ["model", "batch of a rank", "precision", "ranks", "baseline", "recompute", "bytes"],
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return json.dumps(about, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'


def show() -> None:
    found = json.loads(DATA.read_text())
    print(f"peak memory of a rank, {found['machine']}, torch {found['torch']}, {found['date']}")
    for model, batch, precision, ranks, baseline, again, size in found["rows"]:
        peak = predicted(Case(model, batch, precision), ranks, baseline, again).fullest.peak
        name = (
            f"{model:<12}{batch:>4}  {precision or 'float32':<10}{ranks} ranks  {baseline + ', recomputed' * again:<24}"
        )
        print(f"{name}{peak / 1e9:>9.3f} GB{size / 1e9:>9.3f} GB{peak / size:>8.3f}", flush=True)


def main(
    measure: Annotated[int, typer.Option(help="Measure on so many NCCL ranks of this GPU first.")] = 0,
    only: Annotated[str, typer.Option(help="Measure those whose name begins so; others stay as they are.")] = "",
) -> None:
    """Hold predicted peaks against measured ones."""
    if measure and any(statuses := launch(measure, True, "benchmarks.peaks", only)):
        raise SystemExit(f"ranks ended with {statuses}")
    show()


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank(DATA, sys.argv[1])
    else:
        typer.run(main)
