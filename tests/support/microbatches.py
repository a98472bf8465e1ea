"""Strategies with microbatches, at random, and plain PyTorch that adds the gradients of the same slices up."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

import soapstone as ss
from soapstone.errors import GraphError
from soapstone.graph import microbatch, reduction

from .training import SEED, Batches, Record, optimizer_of


def microbatched(graph: ss.OperatorGraph, topology: ss.Topology, count: int, seed: int) -> ss.Strategy:
    """A random strategy for so many microbatches, with any number of them in flight."""
    rng = random.Random(seed)
    drawn = ss.baselines.random(microbatch(graph, count), topology, seed=seed)
    chosen = {name: replace(each, in_flight=rng.choice((None, *range(1, count + 2)))) for name, each in drawn.items()}
    return ss.Strategy(graph, topology, chosen, count)


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
