"""Language models as others trained them, predicted from model, plan and cluster alone.

Megatron-LM (arXiv 2104.04473, table 1): GPTs in float16 on A100s, all recomputed, without flash attention; the batch is
cut into microbatches of a size that is not given, so the best of a few is taken. All devices and microbatches are
simulated.
torchtitan (its benchmark pages): Llama 3.1 in bfloat16, 8,192 tokens a sample, FSDP2 and tensor parallelism, on H100s
with 2.4 TB/s and a limit of 500 W (`h100_500w` in costs/devices.yaml).

python -m benchmarks.published [NAME ...]"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import soapstone as ss
from soapstone import cache
from soapstone.baselines.expert import tensor_parallel
from soapstone.graph import Op
from soapstone.loading import Request, load_graph, without_numbers
from soapstone.strategy import Configuration
from soapstone.zoo.catalogue import Size

MICROBATCHES = (1, 2, 4, 8)
VOCABULARY, LENGTH = 51_200, 2048


@dataclass(frozen=True)
class Gpt:
    name: str
    layers: int
    width: int
    heads: int
    tensor: int
    stages: int
    devices: int
    batch: int
    published: float  # Tflop/s a device, recomputation counted

    @property
    def flops(self) -> float:
        """Of a batch, by the paper's formula."""
        s, l, h = LENGTH, self.layers, self.width  # noqa: E741
        return 96 * self.batch * s * l * h**2 * (1 + s / (6 * h) + VOCABULARY / (16 * l * h))

    @property
    def replicas(self) -> int:
        return self.devices // (self.tensor * self.stages)

    def predicted(self) -> float:
        return max(self._of_size(size) for size in MICROBATCHES if self.batch % (self.replicas * size) == 0)

    def _of_size(self, size: int) -> float:
        """With microbatches of so many samples."""
        graph, topology = self._graph(self.batch), ss.Topology.parse(f"a100:{self.devices // 8}x8")
        sizes = self.replicas, self.tensor, self.stages
        strategy = ss.baselines.grid(graph, topology, sizes, self.batch // (self.replicas * size))
        inside = [op.name for op in graph.ops if op.name.startswith("blocks.")]
        played = ss.Simulator(graph, topology, _recomputed(strategy, inside), training=ss.Training(optimizer="adam"))
        return self.flops / (played.makespan_ns * 1e-9) / self.devices / 1e12 if played.fits else 0.0

    def _graph(self, batch: int) -> ss.OperatorGraph:
        sizes: dict[str, Size] = {
            "vocab": VOCABULARY,
            "length": LENGTH,
            "width": self.width,
            "heads": self.heads,
            "layers": self.layers,
        }
        asked = {"published": "Megatron", "batch": batch, **sizes}
        if (found := cache.find(asked)) is not None:
            return found
        with patch("torch.nn.functional.scaled_dot_product_attention", _plain_attention):
            graph = ss.capture(without_numbers(Request("gpt2", batch, sizes, dtype="float16")))
        cache.keep(asked, graph, {})
        return graph


def _plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: object) -> torch.Tensor:
    """Causal, with all scores in memory."""
    mask = torch.full((q.shape[-2], k.shape[-2]), float("-inf"), dtype=q.dtype).triu(1)
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask, dim=-1) @ v


@dataclass(frozen=True)
class Llama:
    name: str
    model: str
    data: int
    tensor: int
    batch: int  # of a group of tensor-parallel devices
    selective: bool  # else all is recomputed
    published: float  # tokens a second and device
    compiled: bool

    def predicted(self) -> float:
        devices = self.data * self.tensor
        batch = self.batch * self.data
        graph = load_graph(Request(self.model, batch, options={"precision": "autocast:cuda"}))
        topology = _with_less_power(ss.Topology.parse(f"h100:{devices // 8}x8"))
        strategy = _sequence_parallel(tensor_parallel(graph, topology, self.tensor), self.data, self.tensor)
        strategy = strategy.replace(
            {op.name: replace(strategy[op.name], shard="all") for op, own in zip(graph.ops, graph.trains) if own}
        )
        inside = [op for op in graph.ops if op.name.startswith("blocks.")]
        marked = _selective(inside) if self.selective else [op.name for op in inside]
        sim = _simulated(graph, topology, _recomputed(strategy, marked), "adamw")
        return batch * 8192 / sim.makespan / devices


def _with_less_power(topology: ss.Topology) -> ss.Topology:
    slower = [replace(device, kind="h100_500w", memory=int(96e9)) for device in topology.devices]
    return replace(topology, devices=tuple(slower))


def _sequence_parallel(strategy: ss.Strategy, data: int, tensor: int) -> ss.Strategy:
    """What is whole in a group of tensor-parallel devices, or cut by sample over it, cut by length instead."""
    everyone = tuple(range(data * tensor))
    changed = {}
    for op in strategy.graph.ops if tensor > 1 else ():
        only_samples = all(name == "sample" for name, degree in strategy[op.name].degrees.items() if degree > 1)
        if only_samples and {"sample", "length"} <= {dim.name for dim in op.dims if not dim.extra}:
            changed[op.name] = Configuration({"sample": data, "length": tensor}, everyone)
    return strategy.replace(changed)


def _selective(ops: list[Op]) -> list[str]:
    """torchtitan's choice: all but attention and every second product."""
    products = [op.name for op in ops if op.kind == "linear"]
    kept = {*products[::2], *(op.name for op in ops if op.kind == "attention")}
    return [op.name for op in ops if op.name not in kept]


def _recomputed(strategy: ss.Strategy, names: list[str]) -> ss.Strategy:
    return strategy.replace({name: replace(strategy[name], recompute=True) for name in names})


def _simulated(graph: ss.OperatorGraph, topology: ss.Topology, strategy: ss.Strategy, optimizer: str) -> ss.Simulation:
    return ss.simulate(graph, topology, strategy, training=ss.Training(optimizer=optimizer))


RUNS = (
    Gpt("Megatron 1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
    Gpt("Megatron 3.6B", 30, 3072, 32, 2, 1, 64, 512, 138),
    Gpt("Megatron 7.5B", 36, 4096, 32, 4, 1, 128, 512, 142),
    Gpt("Megatron 18.4B", 40, 6144, 48, 8, 1, 256, 1024, 135),
    Gpt("Megatron 39.1B", 48, 8192, 64, 8, 2, 512, 1536, 138),
    Gpt("Megatron 76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 140),
    Llama("Llama 3.1 8B on 8", "llama-8b", 8, 1, 2, True, 5762, False),
    Llama("Llama 3.1 8B on 8, compiled", "llama-8b", 8, 1, 2, True, 6667, True),
    Llama("Llama 3.1 8B on 128, compiled", "llama-8b", 128, 1, 2, True, 6514, True),
    Llama("Llama 3.1 8B on 64, compiled", "llama-8b", 8, 8, 12, True, 4378, True),
    Llama("Llama 3.1 70B on 256, compiled", "llama-70b", 32, 8, 16, False, 597, True),
)


def main(names: list[str]) -> None:
    table = Table(title="Published runs: Tflop/s a device (Megatron), tokens a second and device (torchtitan)")
    for column in ("run", "plan", "predicted", "published", "ratio"):
        table.add_column(column, justify="left" if column in ("run", "plan") else "right")
    console = Console(width=120)
    for run in RUNS:
        if names and not any(name.lower() in run.name.lower() for name in names):
            continue
        with console.status(run.name):
            found = run.predicted()
        plan = f"data {run.replicas if isinstance(run, Gpt) else run.data} x tensor {run.tensor}"
        plan += f" x {run.stages} stages" if isinstance(run, Gpt) and run.stages > 1 else ""
        table.add_row(run.name, plan, f"{found:,.0f}", f"{run.published:,.0f}", f"{found / run.published:.2f}")
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
