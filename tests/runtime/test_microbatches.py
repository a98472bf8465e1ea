"""Microbatches under random strategies train as plain PyTorch does that adds the gradients of the same slices up."""

from __future__ import annotations

import random

import pytest

import soapstone as ss
from tests.support.microbatches import counts_of, microbatched, train_accumulating
from tests.support.models import ALL, captured
from tests.support.seeds import seeds
from tests.support.sharding import recomputed, sharded
from tests.support.training import STEPS, assert_same, train_threads

CUT = [name for name in ALL if counts_of(captured(name))]


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
