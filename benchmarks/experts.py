"""A mixture of experts on one GPU, predicted and measured: the time of a step on one rank, and the peak of memory on
two that share the GPU, with the experts' weights split by expert and by channel.

python -m benchmarks.experts   (needs a GPU)"""

from __future__ import annotations

import gc
import os
import statistics
import time
from typing import Any

import torch

import soapstone as ss
from soapstone.loading import Request, load_graph, load_workload
from soapstone.runtime import Transport
from soapstone.runtime.optimizers import torch_optimizer
from soapstone.runtime.transports import joined
from soapstone.strategy import Configuration

from .launching import launch, waited

SIZES: dict[str, Any] = {
    "length": 1024, "width": 2048, "inner": 7168, "heads": 16, "key_heads": 4, "layers": 4, "experts": 8
}  # fmt: skip
STEPS = 5


def split(graph: ss.OperatorGraph, topology: ss.Topology, how: str) -> ss.Strategy:
    """Data parallelism, but for products with experts' weights."""
    count, data = topology.num_devices, ss.baselines.data_parallel(graph, topology)
    experts = [op for op in graph.ops if op.kind == "experts"] if how != "data" else []
    names = {op.name: how for op in experts}
    if how == "channel":  # of the hidden layer, which the last product sums over
        names = {op.name: "in" if dict_of(op)["in"] == SIZES["inner"] else "channel" for op in experts}
    return data.replace({name: Configuration({dim: count}, tuple(range(count))) for name, dim in names.items()})


def dict_of(op: Any) -> dict[str, int]:
    return {dim.name: dim.size for dim in op.dims}


def row(how: str, autocast: bool, transport: Transport, place: torch.device) -> str:
    """Measured and predicted milliseconds, and gigabytes at the peak."""
    batch = (4 if autocast else 2) * transport.size
    wanted = Request("mixtral", batch, SIZES, {"precision": "autocast:cuda"} if autocast else {})
    graph, topology = load_graph(wanted), ss.Topology.parse(f"h200:1x{transport.size}")
    strategy = split(graph, topology, how)
    predicted = ss.simulate(graph, topology, strategy, training=ss.Training(optimizer="adamw"))
    torch.manual_seed(0)
    work = load_workload(wanted)
    given = [tensor.to(place) for tensor in work.batch]
    parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, device=place)
    optimizer = torch_optimizer("adamw", parallel.parameters(), 1e-5)
    step = waited(lambda: (parallel.step(*given), optimizer.step()), place)
    times = []
    for number in range(STEPS):
        if number == 2:
            torch.cuda.reset_peak_memory_stats(place)
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    peak = max(transport.exchange(torch.cuda.max_memory_allocated(place)))
    took, wanted_ms = statistics.median(times[2:]) * 1e3, predicted.makespan * 1e3
    steps = f"step {took:.1f} ms, predicted {wanted_ms:.1f}; " if transport.size == 1 else ""
    memory = f"peak {peak / 1e9:.2f} GB, predicted {max(predicted.peak_memory) / 1e9:.2f}"
    return f"{transport.size} ranks, {'autocast' if autocast else 'float32'}, {how}: {steps}{memory}"


def on_each_rank() -> None:
    with joined("python -m benchmarks.experts") as (transport, place):
        for how in ("data",) if transport.size == 1 else ("expert", "channel"):
            for autocast in (True, False):
                found = row(how, autocast, transport, place)
                gc.collect()
                torch.cuda.empty_cache()
                if transport.rank == 0:
                    print(found, flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_each_rank()
    else:
        for ranks in (1, 2):  # over sockets, two ranks' times say nothing
            launch(ranks, True, "benchmarks.experts")
