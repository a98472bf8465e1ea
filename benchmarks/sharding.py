"""Sharded data parallelism, really run, beside torch's own: `fully_shard` of each block and of the model (FSDP2), and
DistributedDataParallel. Interleaved rounds, ratios of medians; on GPUs also the memory that each takes at most.

python -m benchmarks.sharding [RANKS] [--gpu]"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import soapstone as ss
from soapstone.runtime import Transport
from soapstone.runtime.transports import joined

from .launching import launch, waited
from .steps import interleaved, ratio_of

Step = Callable[[], object]
ROUNDS = 15
SMALL = {"length": 64, "width": 256, "heads": 4, "layers": 6, "vocab": 2000}  # for two cores
LARGE = {"length": 512, "width": 1024, "heads": 16, "layers": 8, "vocab": 8000}
BLOCKS = ("GELUBlock", "LlamaBlock")


def workload(name: str, gpu: bool, ranks: int) -> ss.Workload:
    torch.manual_seed(0)
    sizes = dict(LARGE if gpu else SMALL)
    if name == "llama":
        sizes |= {"key_heads": sizes["heads"], "inner": 2 * sizes["width"]}
    return ss.zoo.load(name, batch=4 * ranks, **sizes)


def torch_step(work: ss.Workload, transport: Transport, wrap: Callable[[nn.Module], nn.Module]) -> Step:
    """A rank's share of the batch through a wrapped model."""
    model = wrap(work.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    own = [tensor.chunk(transport.size)[transport.rank] for tensor in work.batch]
    count = len(work.inputs)

    def step() -> None:
        optimizer.zero_grad()
        assert work.loss is not None
        work.loss(model(*own[:count]), *own[count:]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def fully_sharded(place: torch.device, size: int) -> Callable[[nn.Module], nn.Module]:
    mesh = init_device_mesh(place.type, (size,))

    def wrap(model: nn.Module) -> nn.Module:
        for block in model.modules():
            if type(block).__name__ in BLOCKS:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return wrap


def our_step(work: ss.Workload, baseline: str, transport: Transport, kind: str, place: torch.device) -> Step:
    """The model stays on the host; a rank takes of it what its strategy says."""
    graph, topology = ss.capture(work), ss.Topology.parse(f"{kind}:1x{transport.size}")
    strategy = ss.baselines.BASELINES[baseline](graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, device=place)
    batch = [tensor.to(place) for tensor in work.batch]
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4)

    def step() -> None:
        parallel.step(*batch)
        optimizer.step()

    return step


def peak_of(step: Step, place: torch.device) -> int:
    """The most bytes that a step has, beside what others keep; 0 on CPUs, which do not tell."""
    if place.type != "cuda":
        return 0
    torch.cuda.synchronize(place)
    before = torch.cuda.memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    step()
    torch.cuda.synchronize(place)
    return torch.cuda.max_memory_allocated(place) - before


def makers(name: str, transport: Transport, place: torch.device) -> dict[str, Callable[[], Step]]:
    gpu, size = place.type == "cuda", transport.size
    kind, ids = ("h200", [place.index]) if gpu else ("cpu", None)

    def make() -> ss.Workload:
        return workload(name, gpu, size)

    def replicated(model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    return {
        "fully_shard": lambda: torch_step(make().on(place), transport, fully_sharded(place, size)),
        "fsdp": lambda: our_step(make(), "fsdp", transport, kind, place),
        "DDP": lambda: torch_step(make().on(place), transport, replicated),
        "zero1": lambda: our_step(make(), "zero1", transport, kind, place),
        "data": lambda: our_step(make(), "data", transport, kind, place),
    }


def compare(name: str, transport: Transport, place: torch.device) -> None:
    def bytes_now() -> int:
        return torch.cuda.memory_allocated(place) if place.type == "cuda" else 0

    steps: dict[str, Step] = {}
    kept: dict[str, int] = {}
    for each, maker in makers(name, transport, place).items():
        before = bytes_now()
        steps[each] = waited(maker(), place)
        steps[each]()  # the optimizer's state is there from the first step on
        kept[each] = bytes_now() - before
    times = interleaved(ROUNDS, *steps.values(), before=lambda: dist.barrier())
    slowest = [[max(each) for each in zip(*ranks)] for ranks in zip(*transport.exchange(times))]
    peaks = {each: kept[each] + peak_of(step, place) for each, step in steps.items()}
    if transport.rank == 0:
        show(name, dict(zip(steps, slowest)), peaks, transport.size, place)


def on_each_rank() -> None:
    torch.set_num_threads(1)
    with joined("python -m benchmarks.sharding") as (transport, place):
        for name in ("gpt2", "llama"):
            compare(name, transport, place)


def show(name: str, times: dict[str, list[float]], peaks: dict[str, int], ranks: int, place: torch.device) -> None:
    table = Table(title=f"{name} on {ranks} {place.type} ranks, AdamW, 4 samples a rank, {ROUNDS} interleaved rounds")
    for column in ("step", "median", "against fully_shard", "against DDP", "peak memory"):
        table.add_column(column, justify="right")
    for each, own in times.items():
        ratios = [str(ratio_of(own, times[other])) for other in ("fully_shard", "DDP")]
        peak = f"{peaks[each] / 1e9:.2f} GB" if peaks[each] else ""
        table.add_row(each, f"{sorted(own)[len(own) // 2] * 1e3:.1f} ms", *ratios, peak)
    Console(width=120).print(table)


def main(
    ranks: Annotated[int, typer.Argument(help="How many.")] = 2,
    gpu: Annotated[bool, typer.Option(help="NCCL ranks that share one GPU, instead of gloo ranks.")] = False,
) -> None:
    """Train by our sharded strategies and by torch's own wrappers, side by side."""
    if any(statuses := launch(ranks, gpu, "benchmarks.sharding")):
        raise SystemExit(f"ranks ended with {statuses}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank()
    else:
        typer.run(main)
