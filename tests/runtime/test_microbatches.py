"""Microbatches under random strategies train as plain PyTorch does that adds the gradients of the same slices up."""

from __future__ import annotations

import random

import pytest
import torch

import soapstone as ss
from soapstone.errors import GraphError
from soapstone.graph import microbatch, reduction
from tests.support.microbatches import microbatched
from tests.support.models import ALL, captured
from tests.support.seeds import seeds
from tests.support.sharding import recomputed, sharded
from tests.support.training import SEED, STEPS, Batches, Record, assert_same, optimizer_of, train_threads


def counts_of(graph: ss.OperatorGraph) -> list[int]:
    """Into how many microbatches a batch can be cut."""
    found = []
    for count in (2, 3, 4, 5, 6, 8):
        try:
            microbatch(graph, count)
        except GraphError:
            continue
        found.append(count)
    return found


CUT = [name for name in ALL if counts_of(captured(name))]


def slices_of(graph: ss.OperatorGraph, batch: tuple[torch.Tensor, ...], count: int) -> list[list[torch.Tensor]]:
    axes = [*graph.settings.batch_dims, *[None] * len(batch)]
    pieces = [[x] * count if axis is None else x.chunk(count, axis) for x, axis in zip(batch, axes)]
    return [list(found) for found in zip(*pieces)]


def train_accumulating(work: ss.Workload, graph: ss.OperatorGraph, batches: Batches, count: int) -> Record:
    """Plain PyTorch, slice by slice."""
    optimizer = optimizer_of(work.model.parameters())
    share = 1.0 if reduction(graph) == "sum" else 1 / count
    losses, gradients = [], []
    torch.manual_seed(SEED)
    for batch in batches:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for piece in slices_of(graph, batch, count):
            loss = work.compute_loss(*piece) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        losses.append(total.to(loss.dtype))
        gradients.append({n: p.grad.clone() for n, p in work.model.named_parameters() if p.grad is not None})
        optimizer.step()
    return Record(losses, gradients, {n: t.clone() for n, t in work.model.state_dict().items()})


def test_most_models_can_be_cut() -> None:
    assert len(CUT) >= 8


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds(4, 40))
@pytest.mark.parametrize("name", CUT)
def test_random_strategies_train_like_accumulated_slices(name: str, seed: int) -> None:
    graph, case, rng = captured(name), ALL[name], random.Random(f"{name} {seed}")
    count = rng.choice(counts_of(graph))
    topology = ss.Topology.parse(f"cpu:1x{rng.choice((2, 3, 4, 8))}")
    strategy = recomputed(sharded(microbatched(graph, topology, count, seed), seed), seed)
    batches = case.batches(STEPS)
    wanted = train_accumulating(case.workload(), graph, batches, count)
    for record in train_threads(case.workload, graph, strategy, batches, strict=False):
        assert_same(record, wanted)
