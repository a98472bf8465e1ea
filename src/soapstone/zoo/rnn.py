"""The paper's recurrent networks, unrolled: each step of each layer is a call of its own, and the steps of one layer
share their weights."""

from __future__ import annotations

import torch
from torch import nn

State = tuple[torch.Tensor, torch.Tensor]


class Stack(nn.Module):
    """LSTM layers on top of one another, one step at a time."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(inputs if i == 0 else hidden, hidden) for i in range(layers))
        self.hidden = hidden

    def start(self, like: torch.Tensor) -> list[State]:
        zeros = like.new_zeros(like.shape[0], self.hidden)
        return [(zeros, zeros) for _ in self.cells]

    def forward(self, x: torch.Tensor, states: list[State]) -> tuple[torch.Tensor, list[State]]:
        after = []
        for cell, state in zip(self.cells, states):
            h, c = cell(x, state)
            after.append((h, c))
            x = h
        return x, after


class RNNTC(nn.Module):
    """Text classification: the last step's state gives the class."""

    def __init__(self, vocab: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(vocab, hidden), Stack(hidden, hidden, layers)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        states = self.stack.start(x)
        for step in range(tokens.shape[1]):
            y, states = self.stack(x[:, step], states)
        logits: torch.Tensor = self.head(y)
        return logits


class RNNLM(nn.Module):
    """A language model: every step predicts the next word."""

    def __init__(self, vocab: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(vocab, hidden), Stack(hidden, hidden, layers)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        states, logits = self.stack.start(x), []
        for step in range(tokens.shape[1]):
            y, states = self.stack(x[:, step], states)
            logits.append(self.head(y))
        return torch.stack(logits, 1)


class NMT(nn.Module):
    """Translation: an encoder, a decoder that starts from its states, and attention on the last decoder layer."""

    def __init__(self, vocab: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, hidden), nn.Embedding(vocab, hidden)
        self.encoder, self.decoder = Stack(hidden, hidden, layers), Stack(hidden, hidden, layers)
        self.query, self.mix = nn.Linear(hidden, hidden, bias=False), nn.Linear(2 * hidden, hidden)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.source(source)
        states, seen = self.encoder.start(x), []
        for step in range(source.shape[1]):
            y, states = self.encoder(x[:, step], states)
            seen.append(y)
        memory = torch.stack(seen, 1)
        x, logits = self.target(target), []
        for step in range(target.shape[1]):
            y, states = self.decoder(x[:, step], states)
            weights = torch.softmax(torch.matmul(memory, self.query(y)[:, :, None])[:, :, 0], 1)
            context = torch.matmul(weights[:, None], memory)[:, 0]
            logits.append(self.head(torch.tanh(self.mix(torch.cat([context, y], 1)))))
        return torch.stack(logits, 1)
