"""Training steps, really run, side by side: one rank against eager PyTorch, and data parallelism on two gloo processes
against DistributedDataParallel. Interleaved rounds, medians, and a bootstrap interval of their ratio.

python -m benchmarks.steps [--gpu [MODEL ...]]"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import soapstone as ss
from soapstone.parts import keep_freed_memory
from soapstone.runtime import ThreadTransport, Transport
from soapstone.tuning.race import Ratio
from soapstone.tuning.steps import ddp_step
from tests.distributed.launch import run_processes

ROUNDS = 100
RANKS = 2

Make = Callable[[], ss.Workload]


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of two medians, with the interval that 90% of resamplings fall into. Rounds are drawn in pairs, since a busy
    moment slows both."""
    draw = random.Random(0)
    pairs = list(zip(ours, theirs, strict=True))

    def ratio(chosen: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in chosen) / statistics.median(b for _, b in chosen)

    found = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(1000))
    return Ratio(ratio(pairs), found[50], found[949])


def interleaved(
    rounds: int, *functions: Callable[[], object], before: Callable[[], object] = lambda: None
) -> list[list[float]]:
    """The seconds of each function, in turns, after two rounds to warm up; `before` each there is something that does
    not count."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds + 2):
        for function, found in zip(functions, times):
            before()
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [found[2:] for found in times]


def _classified(model: nn.Module, x: torch.Tensor, classes: int = 10) -> ss.Workload:
    targets = torch.randint(0, classes, (len(x),))
    return ss.Workload(model, (x,), loss=F.cross_entropy, targets=(targets,))


def mlp() -> ss.Workload:
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return _classified(nn.Sequential(*layers, nn.Linear(1024, 10)), torch.randn(64, 1024))


def cnn(norm: bool = False) -> ss.Workload:
    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1), *([nn.BatchNorm2d(out)] if norm else []), nn.ReLU()]

    layers = [*block(3, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 64), nn.AvgPool2d(2)]
    return _classified(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10)), torch.randn(32, 3, 32, 32))


def transformer() -> ss.Workload:
    return ss.zoo.load("gpt2", batch=4, layers=2, width=256, heads=4, length=128, vocab=2000)


def language_model() -> ss.Workload:
    return ss.zoo.load("rnnlm", batch=32, hidden=256, vocab=1000, length=10)


MODELS: dict[str, tuple[Make, str]] = {
    "MLP": (mlp, "global"),
    "CNN": (cnn, "global"),
    "transformer": (transformer, "global"),
    "CNN, local batch norm": (lambda: cnn(norm=True), "local"),
    "CNN, global batch norm": (lambda: cnn(norm=True), "global"),
    "RNNLM": (language_model, "global"),
}


# DDP has no global batch norm; and RNNLM's unrolled cells are not torch's fused LSTM.
BESIDE = ("CNN, global batch norm", "RNNLM")


def eager_step(work: ss.Workload) -> Callable[[], object]:
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        work.compute_loss(*work.batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def our_step(
    work: ss.Workload, graph: ss.OperatorGraph, strategy: ss.Strategy, transport: Transport | None = None
) -> Callable[[], object]:
    parallel = ss.parallelize(work, graph, strategy.topology, strategy, transport=transport)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)

    def step() -> None:
        parallel.step(*work.batch)
        optimizer.step()

    return step


def against_eager(make: Make, batch_norm: str, rounds: int) -> tuple[float, Ratio]:
    graph, topology = ss.capture(make(), batch_norm=batch_norm), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)

    def measure(rank: int, transport: ThreadTransport) -> list[list[float]]:
        return interleaved(rounds, our_step(make(), graph, strategy, transport), eager_step(make()))

    ours, eager = ss.run_threads(1, measure)[0]
    return statistics.median(ours), ratio_of(ours, eager)


def against_ddp(make: Make, batch_norm: str, rounds: int) -> tuple[float, Ratio]:
    graph, topology = ss.capture(make(), batch_norm=batch_norm), ss.Topology.parse(f"cpu:1x{RANKS}")
    strategy = ss.baselines.data_parallel(graph, topology)

    def measure(rank: int) -> list[list[float]]:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        return interleaved(rounds, our_step(make(), graph, strategy), ddp_step(make()), before=dist.barrier)

    with tempfile.TemporaryDirectory() as folder:
        found = run_processes(RANKS, measure, Path(folder) / "meeting")
    for times in found:
        if isinstance(times, Exception):
            raise times
    slowest = [[max(both) for both in zip(*rounds_of)] for rounds_of in zip(*found)]
    return statistics.median(slowest[0]), ratio_of(*slowest)


def main(rounds: int = ROUNDS) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as `soapstone train` does; page faults hit one side or the other by chance
    table = Table(title="One training step, SGD, one thread a rank: median, ratio and its 90% interval")
    for column in ("model", "1 rank", "against eager", f"{RANKS} gloo ranks", "data parallelism against DDP"):
        table.add_column(column, justify="right")
    product = 1.0
    compared = [name for name in MODELS if name not in BESIDE]
    for name, (make, batch_norm) in MODELS.items():
        alone, eager = against_eager(make, batch_norm, rounds)
        both, ddp = against_ddp(make, batch_norm, rounds)
        product *= ddp.value if name in compared else 1.0
        table.add_row(name, f"{alone * 1e3:.1f} ms", str(eager), f"{both * 1e3:.1f} ms", str(ddp))
    console = Console(width=130)
    console.print(table)
    mean = product ** (1 / len(compared))
    console.print(f"Geometric mean against DDP, without {' and '.join(BESIDE)}: {mean:.3f}x")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gpu"]:
        from . import gpu

        gpu.main(sys.argv[2:])
    else:
        main()
