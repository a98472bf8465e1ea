"""A CNN of your own: find a strategy, say why it wins, and train under it. On two CPU processes:

torchrun --nproc-per-node 2 examples/own_cnn.py
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import soapstone as ss

BATCH, STEPS = 32, 10


class Net(nn.Module):
    """Nothing in here knows of Soapstone."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.hidden = nn.Linear(32 * 8 * 8, 512)
        self.head = nn.Linear(512, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(F.relu(self.hidden(self.features(images).flatten(1))))
        return found


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures whose brightest colour is their class: the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (BATCH,), generator=generator)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    images[torch.arange(BATCH), labels] += 1
    return images, labels


def workload() -> ss.Workload:
    """Also for the commands: soapstone show examples/own_cnn.py:workload"""
    torch.manual_seed(0)
    images, labels = batch(0)
    return ss.Workload(Net(), (images,), loss=F.cross_entropy, targets=(labels,))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    first = dist.get_rank() == 0
    work = workload()
    graph, topology = ss.capture(work), ss.Topology.parse(f"cpu:1x{dist.get_world_size()}")

    # So many proposals, not seconds: then every rank finds the same strategy.
    simulation = ss.simulate(graph, topology, ss.search(graph, topology, budget=None, proposals=2000).strategy)
    if first:
        comparison = ss.report.compared(simulation, ss.baselines.data_parallel(graph, topology))
        print(*ss.report.summary(comparison), sep="\n")
        print(*(f"  {ss.report.sentence(choice, comparison)}" for choice in comparison.choices), sep="\n")

    parallel = ss.parallelize(work, graph, topology, simulation.strategy)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        loss = parallel.step(*batch(step))  # forward, backward, gradient sums
        optimizer.step()
        if first:
            print(f"step {step}: loss {loss.item():.4f}")
    images, labels = batch(STEPS)
    right = (parallel.evaluate(images).argmax(1) == labels).double().mean().item()
    if first:
        print(f"{right:.0%} of {BATCH} unseen pictures are right")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except ss.SoapstoneError as error:
        sys.exit(f"own_cnn: {error}")
