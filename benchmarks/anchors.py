"""Simulated training throughput against published figures.

TensorFlow's benchmark page (May 2017, synthetic data, SGD) gives images a second for 1 and 8 GPUs of a DGX-1 and of a
Google Compute Engine node. Its GPUs each normalise their own batch. `benchmarks/published.py` has language models,
`benchmarks/fit.py` our own measurements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss
from soapstone.zoo.catalogue import Size

RESNET_50: dict[str, Size] = {"blocks": (3, 4, 6, 3)}
RESNET_152: dict[str, Size] = {"blocks": (3, 8, 36, 3)}


@dataclass(frozen=True)
class Anchor:
    name: str
    model: str
    sizes: dict[str, Size]
    batch: int  # a device
    kind: str
    published: dict[int, float]  # devices -> images a second


ANCHORS = [
    Anchor("Inception-v3", "inception-v3", {}, 64, "p100", {1: 142, 8: 1131}),
    Anchor("Inception-v3", "inception-v3", {}, 64, "k80", {1: 30.5, 8: 227}),
    Anchor("Inception-v3", "inception-v3", {}, 32, "p100", {1: 128, 8: 995}),
    Anchor("Inception-v3", "inception-v3", {}, 32, "k80", {1: 29.3, 8: 216}),
    Anchor("ResNet-50", "resnet-101", RESNET_50, 64, "p100", {1: 219, 8: 1734}),
    Anchor("ResNet-50", "resnet-101", RESNET_50, 64, "k80", {1: 51.9, 8: 387}),
    Anchor("ResNet-50", "resnet-101", RESNET_50, 32, "p100", {1: 195, 8: 1485}),
    Anchor("ResNet-50", "resnet-101", RESNET_50, 32, "k80", {1: 49.5, 8: 362}),
    Anchor("ResNet-152", "resnet-101", RESNET_152, 64, "p100", {1: 91.8, 8: 716}),
    Anchor("ResNet-152", "resnet-101", RESNET_152, 32, "k80", {1: 20.0, 8: 148}),
    Anchor("AlexNet", "alexnet", {}, 512, "p100", {1: 2987, 8: 17822}),
    Anchor("AlexNet", "alexnet", {}, 512, "k80", {1: 656, 8: 4640}),
]


@cache
def _graph(model: str, batch: int | None, sizes: tuple[tuple[str, Any], ...]) -> ss.OperatorGraph:
    return ss.capture(ss.zoo.load(model, batch=batch, **dict(sizes)), batch_norm="local")


def predicted(anchor: Anchor, devices: int) -> float:
    """Images a second under data parallelism."""
    graph = _graph(anchor.model, anchor.batch * devices, tuple(anchor.sizes.items()))
    topology = ss.Topology.parse(f"{anchor.kind}:1x{devices}")
    sim = ss.simulate(
        graph, topology, ss.baselines.data_parallel(graph, topology), training=ss.Training(optimizer="sgd")
    )
    return anchor.batch * devices / sim.makespan


def main() -> None:
    table = Table(title="Images a second, predicted against published")
    for column in ("model", "batch a device", "devices", "predicted", "published", "ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for anchor in track(ANCHORS, "predicting", console=Console(stderr=True)):
        for devices, published in anchor.published.items():
            found = predicted(anchor, devices)
            row = (f"{devices} {anchor.kind}", f"{found:.0f}", f"{published:g}", f"{found / published:.2f}")
            table.add_row(anchor.name, str(anchor.batch), *row)
    Console(width=120).print(table)
