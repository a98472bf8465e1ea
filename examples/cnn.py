"""A small CNN with batch norm, dropout, pooling, a residual branch and a concat, and a workload for it."""

import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss

BATCH = 32


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.branch = nn.Conv2d(16, 16, 3, padding=1)
        self.side = nn.Conv2d(16, 8, 1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.mean = nn.AvgPool2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        residual = x + self.branch(x)
        x = self.mean(self.pool(torch.cat([residual, self.side(x)], 1)))
        logits: torch.Tensor = self.head(self.drop(x.flatten(1)))
        return logits


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose class is the brightest of ten stripes, so that there is something to learn."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 10, (BATCH,), generator=generator)
    images = torch.randn(BATCH, 3, 32, 32, dtype=torch.float64, generator=generator)
    for image, label in zip(images, labels):
        image[:, 3 * label : 3 * label + 3] += 1
    return images, labels


def workload() -> ss.Workload:
    torch.manual_seed(0)
    images, labels = batch(0)
    return ss.Workload(SmallCNN().double(), (images,), loss=F.cross_entropy, targets=(labels,))
