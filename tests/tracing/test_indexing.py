"""Tensors indexed by tensors: what follows the batch splits and is cut along it, and all train like one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.graph import microbatch
from tests.support.models import seeded
from tests.support.training import assert_same, train_plain, train_threads

T = torch.Tensor
SAMPLES, LENGTH, WIDTH = 4, 5, 6
EACH = torch.arange(SAMPLES)


def best(y: T) -> T:
    """A place for each sample."""
    return y.detach().sum(-1).argmax(-1)


INDEXED: dict[str, Callable[[T], T]] = {
    "a place of each sample": lambda y: y[EACH, best(y)],
    "from the end": lambda y: y[EACH, best(y) - LENGTH],
    "int32": lambda y: y[EACH, best(y).int()],
    "the last": lambda y: y[EACH, -1],
    "several places": lambda y: y[EACH[:, None], y.detach().sum(-1).topk(2).indices],
    "an element of each place": lambda y: y[EACH[:, None], torch.arange(LENGTH), y.detach().argmax(-1)],
    "the same places of all": lambda y: y[EACH[:, None], torch.tensor([0, 2])],
    "all of them": lambda y: y[EACH[:, None, None, None], torch.arange(LENGTH)],
}
WHOLE: dict[str, Callable[[T], T]] = {
    "another order": lambda y: y[torch.tensor([1, 0, 3, 2])],
    "some samples": lambda y: y[torch.arange(2)],
    "places first": lambda y: y[EACH, torch.arange(LENGTH)[:, None]],
    "a diagonal": lambda y: y[EACH, EACH],
}


class Indexing(nn.Module):
    def __init__(self, function: Callable[[T], T]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64)), function

    def forward(self, x: T) -> T:
        return self.function(x @ self.weight)


def work(function: Callable[[T], T]) -> ss.Workload:
    with seeded(2):
        x = torch.randn(SAMPLES, LENGTH, WIDTH, dtype=torch.float64)
        return ss.Workload(Indexing(function), (x,), loss=lambda y: (y**2).mean())


@pytest.mark.parametrize("name", [*INDEXED, *WHOLE])
def test_it_trains_like_one_device(name: str) -> None:
    function = (INDEXED | WHOLE)[name]
    graph, batches = ss.capture(work(function)), [work(function).batch] * 2
    strategy = ss.baselines.data_parallel(graph, ss.Topology.parse("cpu:1x2"))
    for record in train_threads(lambda: work(function), graph, strategy, batches):
        assert_same(record, train_plain(work(function), batches))


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_that_counts_the_samples_leaves_them_apart(name: str) -> None:
    assert microbatch(ss.capture(work(INDEXED[name])), 2).ops


@pytest.mark.parametrize("name", WHOLE)
def test_other_indices_of_samples_make_them_meet(name: str) -> None:
    with pytest.raises(ss.SoapstoneError):
        microbatch(ss.capture(work(WHOLE[name])), 2)


class Positions(nn.Module):
    """A table of positions, expanded to the batch before it is used, and a row for each sample."""

    def __init__(self, *, alike: bool) -> None:
        super().__init__()
        self.weight, self.alike = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64)), alike

    def forward(self, x: T) -> T:
        rows = torch.arange(LENGTH, dtype=torch.float64).expand(SAMPLES, LENGTH)
        if not self.alike:
            rows = rows + EACH[:, None]
        unset = torch.empty(SAMPLES, LENGTH, dtype=torch.float64)
        unset[:, 1:] = rows[:, 1:]
        unset[:, :1] = 1.0
        return (x * self.weight).sum(-1) * unset


def positions(*, alike: bool) -> ss.Workload:
    with seeded(2):
        x = torch.randn(SAMPLES, LENGTH, WIDTH, dtype=torch.float64)
        return ss.Workload(Positions(alike=alike), (x,), loss=lambda y: (y**2).mean())


def test_constants_that_are_alike_for_all_samples_are_cut_with_the_batch() -> None:
    graph, batches = ss.capture(positions(alike=True)), [positions(alike=True).batch] * 2
    strategy = ss.baselines.grid(graph, ss.Topology.parse("cpu:1x2"), (1, 1, 2), 2)
    for record in train_threads(lambda: positions(alike=True), graph, strategy, batches):
        assert_same(record, train_plain(positions(alike=True), batches))


def test_constants_that_differ_are_refused() -> None:
    with pytest.raises(ss.SoapstoneError, match="differs from sample to sample; make it an input"):
        microbatch(ss.capture(positions(alike=False)), 2)
