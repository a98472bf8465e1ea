"""LeNet for the handwritten digits that scikit-learn ships, in float64 so that equal means equal."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

import soapstone as ss
from soapstone.zoo.cnn import LeNet

BATCH, EPOCHS, LEARNING_RATE = 64, 4, 0.02
TEST = 261  # of 1,797 images; the others make 24 batches

Slices = tuple[tuple[slice, ...], ...]


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, enlarged from 8 x 8 to the 32 x 32 that LeNet takes, and their labels."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float64)[:, None] / 8 - 1
    return F.interpolate(images, size=32), torch.tensor(found.target)


def workload() -> ss.Workload:
    torch.manual_seed(0)
    images, labels = digits()
    return ss.Workload(LeNet(10).double(), (images[:BATCH],), loss=F.cross_entropy, targets=(labels[:BATCH],))


class Batches(Dataset[tuple[torch.Tensor, ...]]):
    """The batches of one epoch in an order that all ranks share, each cut to what a rank reads: it loads no more."""

    def __init__(self, data: tuple[torch.Tensor, ...], epoch: int, slices: Slices | None = None) -> None:
        self.data, self.slices = data, slices or tuple((slice(None),) for _ in data)
        self.order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(epoch))

    def __len__(self) -> int:
        return len(self.order) // BATCH

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        samples = self.order[number * BATCH : (number + 1) * BATCH]
        cuts = zip(self.data, self.slices)
        return tuple(tensor[samples[first]][(slice(None), *rest)] for tensor, (first, *rest) in cuts)
