"""The models that the tests train: an MLP, a CNN with all its trimmings, an unrolled LSTM with a tied embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from soapstone.tracing import Workload


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 11)
        self.second = nn.Linear(11, 9, bias=False)
        self.last = nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.tanh(self.second(torch.relu(self.first(x)))))
        return y


class CNN(nn.Module):
    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.branch = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.side = nn.Conv2d(6, 4, 1, stride=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.mean = nn.AvgPool2d(2)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(10 * 2 * 2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        residual = x + self.branch(x)
        x = self.mean(self.pool(torch.cat([residual, self.side(x)], 1)))
        y: torch.Tensor = self.head(self.drop(x.flatten(1)))
        return y


class LSTM(nn.Module):
    def __init__(self, steps: int = 3, dropout: float = 0.2) -> None:
        super().__init__()
        self.steps, self.hidden = steps, 6
        self.embed = nn.Embedding(11, 6)
        self.lower, self.upper = nn.LSTMCell(6, 6), nn.LSTMCell(6, 6)
        self.drop = nn.Dropout(dropout)
        self.project = nn.Linear(6, 11, bias=False)
        self.project.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        zeros = x.new_zeros(tokens.shape[0], self.hidden)
        low, high = (zeros, zeros), (zeros, zeros)
        outputs = []
        for step in range(self.steps):
            low = self.lower(x[:, step], low)
            high = self.upper(self.drop(low[0]), high)
            outputs.append(high[0])
        y: torch.Tensor = self.project(torch.stack(outputs, 1))
        return y


@dataclass(frozen=True)
class Case:
    """A model with its loss, and how to make its batches."""

    model: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    def workload(self) -> Workload:
        torch.manual_seed(7)
        model = self.model().double()
        inputs, targets = self.batch()
        return Workload(model, (inputs,), loss=self.loss, targets=(targets,))

    def batches(self, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(11)
        return [self.batch() for _ in range(count)]


def _tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets)


CASES = {
    "mlp": Case(
        MLP, F.mse_loss, lambda: (torch.randn(6, 7, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64))
    ),
    "cnn": Case(
        CNN, F.cross_entropy, lambda: (torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.randint(0, 5, (5,)))
    ),
    "lstm": Case(LSTM, _tokens, lambda: (torch.randint(0, 11, (5, 3)), torch.randint(0, 11, (5, 3)))),
}
