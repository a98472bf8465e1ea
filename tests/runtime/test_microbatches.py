"""Microbatches under random strategies train as plain PyTorch does that adds the gradients of the same slices up."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.errors import RankError
from soapstone.graph import microbatch
from soapstone.runtime import ThreadTransport
from tests.support.microbatches import counts_of, microbatched, train_accumulating
from tests.support.models import ALL, captured
from tests.support.seeds import seeds
from tests.support.sharding import recomputed, sharded
from tests.support.training import STEPS, assert_same, train_plain, train_threads

CUT = [name for name in ALL if counts_of(captured(name))]


def test_most_models_can_be_cut() -> None:
    assert len(CUT) >= 8


@pytest.mark.parametrize("seed", seeds(1, 40))
@pytest.mark.parametrize("name", CUT)
def test_random_strategies_train_like_accumulated_slices(name: str, seed: int) -> None:
    graph, case, rng = captured(name), ALL[name], random.Random(f"{name} {seed}")
    count = rng.choice(counts_of(graph))
    topology = ss.Topology.parse(f"cpu:1x{rng.choice((2, 3, 4, 8))}")
    strategy = recomputed(sharded(microbatched(graph, topology, count, seed), seed), seed)
    batches = case.batches(STEPS)
    wanted = train_accumulating(case.workload(), graph, batches, count)
    for record in train_threads(case.workload, graph, strategy, batches, strict=seed % 2 == 0):
        assert_same(record, wanted)


class Ignoring(nn.Module):
    """Words of which some have no target."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8, dtype=torch.float64), nn.Linear(8, 11, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(x).relu())
        return out.transpose(1, 2)


def ignoring() -> ss.Workload:
    torch.manual_seed(1)
    x, targets = torch.randint(0, 11, (8, 5)), torch.randint(0, 11, (8, 5))
    targets[:2], targets[5, 1:] = -100, -100  # so that microbatches differ in weight, and one has none
    return ss.Workload(Ignoring(), (x,), loss=nn.functional.cross_entropy, targets=(targets,))


@pytest.mark.parametrize("seed", range(6))
def test_a_mean_counts_each_microbatch_by_its_targets(seed: int) -> None:
    """So that cutting the batch changes nothing."""
    graph, topology = ss.capture(ignoring()), ss.Topology.parse("cpu:1x3")
    strategy = sharded(microbatched(graph, topology, 4, seed), seed)
    batches = [ignoring().batch] * 2
    wanted = train_plain(ignoring(), batches)
    for record in train_threads(ignoring, graph, strategy, batches):
        assert_same(record, wanted)


def test_clipping_and_evaluation() -> None:
    graph, topology = captured("gpt"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.grid(graph, topology, (1, 1, 2), 2)
    case = ALL["gpt"]
    (batch,) = case.batches(1)

    def run(rank: int, transport: ThreadTransport) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parallel = ss.parallelize(case.workload(), graph, topology, strategy, transport=transport)
        loss = parallel.step(*batch)
        return loss, parallel.clip_grad_norm_(1e-3), parallel.evaluate(*batch[:1])

    work = case.workload()
    output = work.model.eval()(*batch[:1])
    work.model.train()
    for loss, norm, found in ss.run_threads(2, run):
        assert loss.isfinite()
        assert norm > 0
        torch.testing.assert_close(found, output, rtol=1e-9, atol=1e-12)


def test_autocast() -> None:
    """Shares of the loss follow its type."""
    work = ignoring().to("float32")
    graph, topology = ss.capture(work, precision="autocast:cpu"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.grid(graph, topology, (1, 1, 2), 4)

    workloads = [ignoring().to("float32") for _ in range(2)]

    def run(rank: int, transport: ThreadTransport) -> float:
        own = workloads[rank]
        return float(ss.parallelize(own, graph, topology, strategy, transport=transport).step(*own.batch))

    with torch.autocast("cpu", torch.bfloat16):
        wanted = float(work.compute_loss(*work.batch).detach())
    assert ss.run_threads(2, run) == pytest.approx([wanted] * 2, rel=2e-2)


def test_a_rank_may_pass_its_slices_alone() -> None:
    graph, topology = captured("gpt"), ss.Topology.parse("cpu:1x2")
    data = ss.baselines.data_parallel(microbatch(graph, 2), topology)
    strategy = ss.Strategy(graph, topology, dict(data), 2)
    case = ALL["gpt"]
    (batch,) = case.batches(1)

    def run(rank: int, transport: ThreadTransport) -> list[float]:
        parallel = ss.parallelize(case.workload(), graph, topology, strategy, transport=transport)
        cut = [given[sides] for given, sides in zip(batch, parallel.slices)]
        return [float(parallel.step(*given)) for given in (cut, batch)]

    for sliced, whole in ss.run_threads(2, run):
        assert sliced == pytest.approx(whole, rel=1e-12)


def test_cuda_graphs_are_refused() -> None:
    graph, topology = captured("gpt"), ss.Topology.parse("cpu:1x1")
    strategy = ss.Strategy(graph, topology, dict(ss.baselines.data_parallel(graph, topology)), 2)

    def run(rank: int, transport: ThreadTransport) -> None:
        ss.parallelize(ALL["gpt"].workload(), graph, topology, strategy, transport=transport, cuda_graphs=True)

    with pytest.raises(RankError, match="CUDA graphs"):
        ss.run_threads(1, run)
