"""Checkpoints of GPT-2 with AdamW on two ranks: the time of a save against torch.save and fsync of the same bytes, how
long a save that is not waited for holds up a step, a resume under another strategy, and what a checkpoint every 50
steps costs.

python -m benchmarks.checkpoints          gloo ranks on CPU cores
python -m benchmarks.checkpoints gpu      NCCL ranks that share a GPU; also the cost of a checkpoint every 50 steps"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import soapstone as ss
from soapstone.loading import Request, load_graph, load_workload
from soapstone.runtime import Parallel, Transport
from soapstone.runtime.checkpoints import latest
from soapstone.runtime.optimizers import torch_optimizer
from soapstone.runtime.transports import joined

from .launching import launch, waited

RANKS, ROUNDS, EVERY = 2, 5, 50
REQUEST = Request("gpt2", 16, {}, {"precision": "autocast:cuda"})
ON_CPU = Request("gpt2", 2, {"length": 64}, {})  # the same weights


def timed(transport: Transport, act: Callable[[], object]) -> float:
    """Seconds until all ranks are done; what was written before is on disk."""
    os.sync()
    transport.exchange(None)
    start = time.perf_counter()
    act()
    return float(max(transport.exchange(time.perf_counter() - start)))


def torch_saved(path: Path, parallel: Parallel, optimizer: torch.optim.Optimizer) -> None:
    """What a rank writes of its own, as torch does."""
    own = [tensor for p in parallel.parameters() for tensor in (p, *optimizer.state[p].values())]
    own = [tensor.detach() for tensor in own if isinstance(tensor, torch.Tensor)]
    with path.open("wb") as file:
        torch.save(own, file)
        file.flush()
        os.fsync(file.fileno())


def made(case: Request, name: str, transport: Transport, place: torch.device) -> tuple[Any, Parallel, Any]:
    torch.manual_seed(0)
    work, graph = load_workload(case), load_graph(case)
    topology = ss.Topology.parse(f"{'h200' if place.type == 'cuda' else 'cpu'}:1x{transport.size}")
    strategy = getattr(ss.baselines, name)(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, device=place)
    return work, parallel, torch_optimizer("adamw", parallel.parameters(), 1e-5)


def main(gpu: bool) -> None:
    with joined("") as (transport, place), tempfile.TemporaryDirectory() as own:
        folder = Path(transport.exchange(own)[0])
        case = REQUEST if gpu else ON_CPU
        work, parallel, optimizer = made(case, "fsdp", transport, place)
        batch = [tensor.to(place) for tensor in work.batch]
        step = waited(lambda: (parallel.step(*batch), optimizer.step()), place)
        for _ in range(3):
            step()
        say = print if transport.rank == 0 else lambda *_: None
        saves(folder, parallel, optimizer, step, transport, say)
        if gpu:
            overhead(folder, parallel, optimizer, step, transport, say)
        del parallel, optimizer, step
        _, parallel, optimizer = made(case, "data_parallel", transport, place)
        seconds = timed(transport, lambda: parallel.load(folder / "saved", optimizer))
        say(f"resume under data parallelism, saved under fsdp: {seconds:.2f} s")


def saves(
    folder: Path, parallel: Parallel, optimizer: Any, step: Callable[[], object], transport: Transport, say: Any
) -> None:
    rows: dict[str, list[float]] = {"torch": [], "save": [], "held up": []}
    for number in range(ROUNDS):
        path = folder / f"torch-{transport.rank}.pt"
        rows["torch"].append(timed(transport, lambda path=path: torch_saved(path, parallel, optimizer)))  # type: ignore[misc]
        rows["save"].append(timed(transport, lambda n=number: parallel.save(folder / "waited", optimizer, step=n)))  # type: ignore[misc]
        rows["held up"].append(
            timed(transport, lambda n=number: parallel.save(folder / "saved", optimizer, step=n, wait=False))  # type: ignore[misc]
        )
        step()
        parallel.saved()
    torch_time, save, held = (statistics.median(row[1:]) for row in rows.values())
    newest = latest(folder / "saved") or folder
    size = sum(path.stat().st_size for path in newest.iterdir())
    say(f"{size / 1e9:.2f} GB; torch.save and fsync {torch_time:.2f} s, save {save:.2f} s: {save / torch_time:.2f}x")
    say(f"a save that is not waited for holds up a step for {held * 1e3:.0f} ms: {held / save:.1%} of the write")
    shutil.rmtree(folder / "waited", ignore_errors=True) if transport.rank == 0 else None


def overhead(
    folder: Path, parallel: Parallel, optimizer: Any, step: Callable[[], object], transport: Transport, say: Any
) -> None:
    """Some rounds of 50 steps with and without a checkpoint, in turns."""
    plain, saving = [], []

    def some(number: int | None) -> None:
        for i in range(EVERY):
            step()
            if i == 0 and number is not None:
                parallel.save(folder / "saved", optimizer, step=number, wait=False)

    for number in range(4):
        plain.append(timed(transport, lambda: some(None)))
        saving.append(timed(transport, lambda n=number: some(100 + n)))  # type: ignore[misc]
        parallel.saved()
    before, after = statistics.median(plain), statistics.median(saving)
    say(f"{EVERY} steps {before:.2f} s, with a checkpoint among them {after:.2f} s: {after / before - 1:+.1%}")


if __name__ == "__main__":
    on_gpu = "gpu" in sys.argv[1:]
    if "RANK" in os.environ:
        main(on_gpu)
    else:
        sys.exit(max(launch(RANKS, on_gpu, "benchmarks.checkpoints", *sys.argv[1:])))
