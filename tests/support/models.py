"""The models that the tests train: an MLP, a CNN with all its trimmings, an unrolled LSTM with a tied embedding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from soapstone.graph import OperatorGraph
from soapstone.tracing import Workload, capture


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


class GPT(nn.Module):
    """Pre-norm blocks with a fused QKV projection, causal attention, GELU and a tied head."""

    def __init__(self, vocab: int = 17, length: int = 6, width: int = 8, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length + 2, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.token(tokens) + self.position(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            pieces = block["qkv"](block["norm1"](x)).chunk(3, 2)
            q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in pieces)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](y.transpose(1, 2).reshape(batch, length, -1))
            x = x + block["down"](F.gelu(block["up"](block["norm2"](x))))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Transformer(nn.Module):
    """torch's own, with dropout inside attention."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x, x))
        return y


class Recurrent(nn.Module):
    """Whole recurrent layers: bidirectional, stacked with dropout, LSTM and GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru, self.head = nn.GRU(10, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.gru(self.lstm(x)[0])[0][:, -1])
        return y


class Tokened(nn.Module):
    """A class token in front of a sequence, and positions added to both, as ViT has them: the gradients of the two are
    parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.first(x)], 1) + self.position
        y: torch.Tensor = self.head(torch.tanh(x).mean(1))
        return y


class TwoBiases(nn.Module):
    """Two parameters that two layers read, with one gradient for both: autograd gives each a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.one, self.other = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x) + (self.one[None] + self.other[None]))
        y: torch.Tensor = self.second(x) * (self.one[None] + self.other[None])
        return y


ONE_AT_A_TIME = threading.RLock()  # torch's generator and torch.export are the process's, not the thread's


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed, undisturbed by other threads and without a trace in torch's generator."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Case:
    """A model with its loss, and how to make its batches."""

    model: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    def workload(self) -> Workload:
        with seeded(7):
            model = self.model().double()
            inputs, targets = self.batch()
        return Workload(model, (inputs,), loss=self.loss, targets=(targets,))

    def batches(self, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        with seeded(11):
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

# Models of more families, for the equality tests alone.
MORE = {
    "gpt": Case(
        GPT,
        lambda logits, targets: F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)),
        lambda: (torch.randint(0, 17, (4, 6)), torch.randint(0, 17, (4, 6))),
    ),
    "transformer": Case(
        Transformer,
        F.mse_loss,
        lambda: (torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(3, 5, 3, dtype=torch.float64)),
    ),
    "recurrent": Case(
        Recurrent, F.cross_entropy, lambda: (torch.randn(4, 5, 4, dtype=torch.float64), torch.randint(0, 3, (4,)))
    ),
    "tokened": Case(
        Tokened, F.cross_entropy, lambda: (torch.randn(4, 5, 4, dtype=torch.float64), torch.randint(0, 3, (4,)))
    ),
    "two biases": Case(
        TwoBiases,
        F.mse_loss,
        lambda: (torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)),
    ),
}

ALL = CASES | MORE


def captured(name: str) -> OperatorGraph:
    """The graph of a case, captured once."""
    with ONE_AT_A_TIME:
        return _captured(name)


@cache
def _captured(name: str) -> OperatorGraph:
    return capture(ALL[name].workload())
