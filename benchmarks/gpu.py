"""Training steps on a GPU, side by side: one rank, plain, as CUDA graphs and compiled, against eager PyTorch and
torch.compile, and data parallelism on NCCL ranks that share the GPU against DistributedDataParallel. Interleaved
rounds, medians, and a bootstrap interval of their ratio. `python -m benchmarks.steps --gpu [MODEL ...]` runs it."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import soapstone as ss
from soapstone.loading import Request, load_graph, load_workload
from soapstone.runtime import Transport
from soapstone.runtime.sharing import run_ranks, shared_gpu
from soapstone.runtime.transports import alone, joined
from soapstone.tuning.race import Ratio

from .steps import interleaved, ratio_of

ROUNDS = 15
RANKS = 4
Step = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A model, and which comparisons it takes part in."""

    model: str
    batch: int
    sizes: dict[str, Any] = field(default_factory=dict)
    precision: str = ""
    compared: str = "a"  # a: one rank; c: compiled; g: as CUDA graphs; d: against DDP; k: compiled against DDP

    def request(self, batch_norm: str = "global") -> Request:
        options = {"chunk": 1, "batch_norm": batch_norm} | ({"precision": self.precision} if self.precision else {})
        return Request(self.model, self.batch, self.sizes, options)

    def autocast(self) -> torch.autocast:
        return torch.autocast("cuda", torch.bfloat16, enabled=bool(self.precision))


SMALL_LLAMA = {"layers": 6, "length": 1024}
CASES = {
    "Inception-v3": Case("inception-v3", 64, compared="ad"),
    "ResNet-101": Case("resnet-101", 64, compared="acdk"),
    "AlexNet": Case("alexnet", 256, compared="acdk"),
    "RNNLM": Case("rnnlm", 64, compared="agd"),
    "NMT": Case("nmt", 64, compared="ag"),
    "NMT, batch 8": Case("nmt", 8, compared="g"),
    "LeNet": Case("lenet", 64, compared="g"),
    "GPT-2": Case("gpt2", 8, compared="a"),
    "GPT-2, bf16": Case("gpt2", 8, precision="autocast:cuda", compared="acdk"),
    "Llama of 6 layers, bf16": Case("llama", 4, SMALL_LLAMA, precision="autocast:cuda", compared="ac"),
}


def plain_step(case: Case, work: ss.Workload, compiled: bool, model: nn.Module | None = None) -> Step:
    """Plain PyTorch: eager, or model and loss through torch.compile. `model` may wrap the workload's model."""
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
    loss_of = torch.compile(work.compute_loss) if compiled else work.compute_loss

    def step() -> None:
        optimizer.zero_grad()
        with case.autocast():
            loss = loss_of(*work.batch, model=model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.cuda.synchronize()

    return step


def ddp_step(case: Case, work: ss.Workload, compiled: bool) -> Step:
    """DistributedDataParallel on this rank's share of the batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    local = [t[rank * len(t) // size : (rank + 1) * len(t) // size] for t in work.batch]
    model: Any = DistributedDataParallel(work.model, device_ids=[torch.cuda.current_device()])
    model = torch.compile(model) if compiled else model
    inputs, targets = tuple(local[: len(work.inputs)]), tuple(local[len(work.inputs) :])
    return plain_step(case, replace(work, inputs=inputs, targets=targets), False, model)


def our_step(work: ss.Workload, graph: ss.OperatorGraph, transport: Transport, **options: Any) -> tuple[Step, float]:
    """A step under data parallelism, and what it is predicted to take."""
    topology = ss.Topology.parse(f"h200:1x{transport.size}")
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, **options)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)

    def step() -> None:
        parallel.step(*work.batch)
        optimizer.step()
        torch.cuda.synchronize()

    return step, parallel.simulation.makespan


def made(case: Case, place: torch.device) -> ss.Workload:
    torch.manual_seed(0)
    return load_workload(case.request()).on(place)


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    ratio: Ratio
    predicted: float


def alone_row(name: str, rounds: int, compiled: bool = False, graphed: bool = False) -> Row:
    case, place = CASES[name], torch.device("cuda", 0)
    graph = load_graph(case.request())
    step, predicted = our_step(made(case, place), graph, alone(), compile=compiled, cuda_graphs=graphed)
    beside = plain_step(case, made(case, place), compiled)
    for warm_up in (step, beside):
        for _ in range(3):
            warm_up()
    ours, plain = interleaved(rounds, step, beside)
    return Row(name, statistics.median(ours), ratio_of(ours, plain), predicted)


def ddp_row(name: str, compiled: bool, transport: Transport, place: torch.device, rounds: int) -> Row:
    torch.compiler.reset()  # or the next model that runs the same code would be compiled for dynamic shapes
    torch.cuda.empty_cache()
    case = CASES[name]
    graph = load_graph(case.request("local"))
    step, predicted = our_step(made(case, place), graph, transport, compile=compiled)
    for _ in range(3):
        step()

    def meet() -> None:
        transport.exchange(None)

    own = interleaved(rounds, step, ddp_step(case, made(case, place), compiled), before=meet)
    ours, ddp = [[max(times) for times in zip(*of_rank)] for of_rank in zip(*transport.exchange(own))]
    return Row(name, statistics.median(ours), ratio_of(ours, ddp), predicted)


def show(title: str, against: str, rows: Sequence[Row], devices: int = 1) -> None:
    predicted = f"predicted for {devices} whole H200{'s' * (devices > 1)}"
    table = Table("model", "ours", f"against {against}", predicted, title=title, title_justify="left")
    for row in rows:
        table.add_row(row.name, f"{row.seconds * 1e3:.1f} ms", str(row.ratio), f"{row.predicted * 1e3:.1f} ms")
    console = Console(width=130)
    console.print(table)
    if rows:
        mean = math.exp(statistics.mean(math.log(row.ratio.value) for row in rows))
        console.print(f"Geometric mean {mean:.3f}x, most {max(row.ratio.value for row in rows):.3f}x.\n")


def on_each_rank(names: Sequence[str], rounds: int) -> None:
    with joined("python -m benchmarks.steps --gpu") as (transport, place):
        for compiled, kind in ((False, "d"), (True, "k")):
            chosen = [name for name in names if kind in CASES[name].compared]
            rows = []
            for name in chosen:
                rows.append(ddp_row(name, compiled, transport, place, rounds))
                if transport.rank == 0:
                    print(f"  {name}: {rows[-1].ratio}", file=sys.stderr, flush=True)
            if transport.rank == 0:
                how, suffix = (", compiled", " and torch.compile") if compiled else ("", "")
                where = f"{transport.size} NCCL ranks of one {torch.cuda.get_device_name()}"
                title = f"Data parallelism{how} on {where}, batch norm local, SGD"
                show(title, f"DistributedDataParallel{suffix}", rows, transport.size)


def in_a_process(act: Callable[..., T], *given: Any, **options: Any) -> T:
    """As a user would run it: beside what other models compiled and left behind, the host takes longer for both."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(act, *given, **options).result()


ALONE: list[tuple[str, str, str, dict[str, bool]]] = [
    ("a", "One rank", "eager PyTorch", {}),
    ("g", "One rank, segments as CUDA graphs", "eager PyTorch", {"graphed": True}),
    ("c", "One rank compiled", "torch.compile", {"compiled": True}),
]


def main(names: Sequence[str] = (), rounds: int = ROUNDS) -> None:
    """All models, or those whose names begin so."""
    if not torch.cuda.is_available():
        sys.exit("these steps need an NVIDIA GPU, and torch finds none here; leave --gpu out to run them on the CPU")
    chosen = [name for name in CASES if not names or any(name.lower().startswith(n.lower()) for n in names)]
    for kind, title, against, options in ALONE:
        rows = []
        for name in chosen:
            if kind in CASES[name].compared:
                rows.append(in_a_process(alone_row, name, rounds, **options))
                print(f"  {name}: {rows[-1].ratio}", file=sys.stderr, flush=True)
        show(f"{title}, {torch.cuda.get_device_name()}, SGD", against, rows)
    command = [sys.executable, "-m", "benchmarks.gpu", json.dumps([list(chosen), rounds])]
    with shared_gpu(RANKS) as environments:
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}
        if any(run_ranks(command, [environment | path for environment in environments])):
            raise subprocess.SubprocessError("a rank failed")


if __name__ == "__main__":
    on_each_rank(*json.loads(sys.argv[1]))
