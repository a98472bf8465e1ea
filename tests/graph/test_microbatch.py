"""The graph of a microbatch is the one that a capture of as many samples gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.errors import GraphError
from soapstone.graph import microbatch, reduction

MODELS: dict[str, dict[str, Any]] = {
    "lenet": {},
    "resnet-101": {"image": 64, "blocks": (1, 1, 1, 1), "width": 4, "classes": 5},
    "nmt": {"vocab": 12, "length": 3, "hidden": 8, "layers": 1},
    "llama": {"vocab": 16, "length": 6, "width": 16, "heads": 4, "key_heads": 2, "inner": 24, "layers": 2},
    "gpt2": {"vocab": 16, "length": 6, "width": 8, "heads": 2, "layers": 2},
    "vit": {"image": 16, "patch": 4, "width": 8, "heads": 2, "layers": 1, "classes": 5},
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_a_capture_of_fewer_samples_gives(name: str) -> None:
    whole, small = (ss.capture(ss.zoo.load(name, batch=batch, **MODELS[name])) for batch in (12, 4))
    assert microbatch(whole, 1) is whole
    assert microbatch(whole, 3).to_data() == small.to_data()


def test_a_batch_that_does_not_divide_is_refused() -> None:
    graph = ss.capture(ss.zoo.load("lenet", batch=6))
    with pytest.raises(GraphError, match="a batch of 6 cannot be cut into 4 microbatches; use a divisor"):
        microbatch(graph, 4)
    with pytest.raises(GraphError, match="a batch cannot be cut into 0 microbatches"):
        microbatch(graph, 0)


class Meeting(nn.Module):
    """Something that is done with the samples of a batch among themselves."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.encode, self.act = nn.Linear(3, 4), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.encode(x)).sum()


MEETINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all pairs": lambda y: y @ y.T,
    "softmax over the batch": lambda y: y.softmax(0) * y,
    "the first alone": lambda y: y[0],
    "the first half": lambda y: y[:3],
    "in threes": lambda y: y.view(2, 3, 4).softmax(1),
    "the largest": lambda y: y.amax(0),
}


class Learned(nn.Module):
    """A bias for each sample of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.bias = nn.Linear(3, 4), nn.Parameter(torch.zeros(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.encode(x) + self.bias
        return y


@pytest.mark.parametrize("name", MEETINGS)
def test_samples_that_meet_are_refused(name: str) -> None:
    graph = ss.capture(ss.Workload(Meeting(MEETINGS[name]), (torch.randn(6, 3),)))
    with pytest.raises(GraphError, match="samples of a batch meet one another in "):
        microbatch(graph, 2)


def test_a_parameter_of_each_sample_is_refused() -> None:
    graph = ss.capture(ss.Workload(Learned(), (torch.randn(6, 3),), loss=F.mse_loss, targets=(torch.randn(6, 4),)))
    with pytest.raises(GraphError, match="bias has a number for each sample"):
        microbatch(graph, 2)


def _sums(o: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 1 - 2 * (o * y).sum() / (o.sum() + y.sum())


@pytest.mark.parametrize("loss", [
    _sums,
    lambda o, y: nn.functional.mse_loss(o, y) + 1e-2 * o.pow(2).sum(),
    lambda o, y: nn.functional.mse_loss(o, y).sqrt(),
    lambda o, y: o.sum() + 1.0,
])  # fmt: skip
def test_a_loss_that_microbatches_do_not_add_up_to_is_refused(loss: Callable[..., torch.Tensor]) -> None:
    graph = ss.capture(ss.Workload(nn.Linear(4, 4), (torch.rand(8, 4),), loss=loss, targets=(torch.rand(8, 4),)))
    with pytest.raises(GraphError, match="no sum or mean over samples"):
        microbatch(graph, 2)


@pytest.mark.parametrize(("loss", "way"), [
    (nn.functional.mse_loss, "mean"),
    (lambda o, y: 3 * nn.functional.mse_loss(o, y) + (o - y).abs().mean() / 2, "mean"),
    (lambda o, y: (o - y).pow(2).sum() / 32, "sum"),
    (lambda o, y: -(o * y).sum(), "sum"),
])  # fmt: skip
def test_how_losses_join(loss: Callable[..., torch.Tensor], way: str) -> None:
    graph = ss.capture(ss.Workload(nn.Linear(4, 4), (torch.rand(8, 4),), loss=loss, targets=(torch.rand(8, 4),)))
    assert reduction(graph) == way
