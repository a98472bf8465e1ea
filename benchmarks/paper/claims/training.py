"""Claim 13: the same accuracy in less time, on the handwritten digits that scikit-learn ships.

A CNN with large dense layers trains on two gloo ranks of this machine, by DistributedDataParallel and under the
strategy that the search finds for it, epoch by epoch in turns, so that a busy machine slows both alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import soapstone as ss
from tests.distributed.launch import run_processes

from ..claim import NOT_RUN, Claim, Ours
from ..figures import COLOURS, figure, plain
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import search

RANKS, BATCH, EPOCHS, RATE = 2, 64, 8, 0.01
TEST = 261  # of 1,797 images; the others make 24 batches
TARGET = 0.95
WAYS = {"ddp": "DistributedDataParallel", "soapstone": "Soapstone"}

Step = Callable[[Tensor, Tensor], Tensor]
Predict = Callable[[Tensor], Tensor]


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # which only this claim needs

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    return F.interpolate(images, size=16), torch.tensor(found.target)


def workload() -> ss.Workload:
    torch.manual_seed(0)
    dense = [nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *dense)
    images, labels = digits()
    return ss.Workload(model, (images[:BATCH],), loss=F.cross_entropy, targets=(labels[:BATCH],))


def with_ddp(rate: float) -> tuple[Step, Predict]:
    work, rank = workload(), dist.get_rank()
    model = DistributedDataParallel(work.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        own = slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)
        loss: Tensor = F.cross_entropy(model(images[own]), labels[own])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, model


def with_soapstone(graph: ss.OperatorGraph, strategy: ss.Strategy, rate: float) -> tuple[Step, Predict]:
    parallel = ss.parallelize(workload(), graph, strategy.topology, strategy)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=rate, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = parallel.step(images, labels)
        optimizer.step()
        return loss

    return step, parallel.evaluate


def training(epochs: int, rate: float) -> Found:
    """By way: seconds of all steps and the accuracy on unseen digits, after each epoch."""
    graph, topology = ss.capture(workload()), ss.Topology.parse(f"cpu:1x{RANKS}")
    strategy = search(graph, topology, budget=5.0).strategy

    def train(rank: int) -> Found:
        torch.set_num_threads(1)
        images, labels = digits()
        ways = {"ddp": with_ddp(rate), "soapstone": with_soapstone(graph, strategy, rate)}
        seconds = dict.fromkeys(ways, 0.0)
        curves: Found = {way: [] for way in ways}
        for epoch in range(epochs):
            order = TEST + torch.randperm(len(images) - TEST, generator=torch.Generator().manual_seed(epoch))
            for way, (step, predict) in ways.items():
                dist.barrier()
                begun = monotonic()
                for batch in order.view(-1, BATCH):
                    step(images[batch], labels[batch])
                seconds[way] += monotonic() - begun
                with torch.no_grad():
                    right = predict(images[:TEST]).argmax(1) == labels[:TEST]
                curves[way].append((seconds[way], right.double().mean().item()))
        return curves

    with tempfile.TemporaryDirectory() as folder:
        found = run_processes(RANKS, train, Path(folder) / "meeting")
    for failed in found:
        if isinstance(failed, Exception):
            raise failed
    curves: Found = found[0]
    return curves


JOB = Job(training, {"epochs": EPOCHS, "rate": RATE}, alone=True)


def reached(curve: list[tuple[float, float]]) -> float | None:
    """Seconds of training until the target."""
    return next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None)


def ours(_: Scale, results: Results) -> Ours:
    curves = results.get(JOB)
    if curves is None:
        return Ours(NOT_RUN)
    ends = ", ".join(f"{WAYS[way]} {curve[-1][1]:.1%}" for way, curve in curves.items())
    theirs, mine = (reached(curves[way]) for way in WAYS)
    less = f"{1 - mine / theirs:.0%} less time to {TARGET:.0%}" if mine and theirs else f"{TARGET:.0%} was not reached"
    return Ours(f"a CNN with large dense layers, digits, two CPU ranks: {less}; after {EPOCHS} epochs {ends}")


def draw(_: Scale, results: Results, path: Path) -> None:
    with figure(path, (7, 3.6)) as drawn:
        axes = plain(drawn.subplots(), "digits, two gloo ranks", "seconds of training", "right, of unseen digits")
        for (way, name), colour in zip(WAYS.items(), COLOURS):
            axes.plot(*zip(*results[JOB][way]), marker="o", color=colour, label=name)
        axes.legend(frameon=False)


CLAIM = Claim(
    13,
    "training",
    "The same accuracy as other systems, sooner",
    "Inception-v3 to 72% on ImageNet, 16 P100: 38% less time than TensorFlow",
    "There is no ImageNet here, nor 16 P100. The model is a convolution before dense layers of 12.6 million "
    "parameters, where data parallelism has most to sum; both ways take the same steps to the same accuracy, "
    "and the time differs.",
    lambda _: [JOB],
    ours,
    draw,
)
