"""The same equality on real processes over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import soapstone as ss
from tests.support.models import CASES, captured
from tests.support.seeds import seeds
from tests.support.sharding import sharded
from tests.support.training import SEED, STEPS, Record, assert_same, train_plain, train_rank

from .launch import run_processes


def train_like_one_device(
    name: str, strategies: list[ss.Strategy], ranks: int, folder: Path, sizes: Sequence[int | None] = (None,) * STEPS
) -> None:
    """On processes, one strategy after the other; of each batch so many samples."""
    case = CASES[name]
    batches = [tuple(x[:size] for x in batch) for batch, size in zip(case.batches(len(sizes)), sizes)]

    def run(rank: int) -> list[Record]:
        records = []
        for strategy in strategies:
            work = case.workload()
            torch.manual_seed(SEED)
            records.append(train_rank(work, captured(name), strategy, None, batches))
        return records

    wanted = train_plain(case.workload(), batches)
    for records in run_processes(ranks, run, folder / "meeting"):
        if isinstance(records, Exception):
            raise records
        for record in records:
            assert_same(record, wanted)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CASES)
def test_strategies_train_like_one_device(name: str, ranks: int, tmp_path: Path) -> None:
    graph, topology = captured(name), ss.Topology.parse(f"cpu:1x{ranks}")
    data = ss.baselines.data_parallel(graph, topology)
    strategies = [data, sharded(data, 0, ("all",)), sharded(data, 0, ("optimizer",))]
    strategies += [sharded(ss.baselines.random(graph, topology, seed=seed), seed) for seed in (100, 101)]
    train_like_one_device(name, strategies, ranks, tmp_path)


@pytest.mark.parametrize("most_groups", [0, 8])
def test_batches_of_other_shapes_train_like_one_device(
    most_groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x3")
    strategies = [ss.baselines.data_parallel(graph, topology), ss.baselines.random(graph, topology, seed=2)]
    monkeypatch.setattr("soapstone.runtime.transports.groups.MOST_GROUPS", most_groups)
    train_like_one_device("mlp", strategies, 3, tmp_path, sizes=(6, 4, 1))


@pytest.mark.parametrize("name", CASES)
def test_sums_without_a_group_train_like_one_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All-reduces among sets of ranks that have no process group go by messages."""
    graph, topology = captured(name), ss.Topology.parse("cpu:1x3")
    strategies = [sharded(ss.baselines.random(graph, topology, seed=seed), seed) for seed in (100, 101, 102)]
    monkeypatch.setattr("soapstone.runtime.transports.groups.MOST_GROUPS", 0)
    train_like_one_device(name, strategies, 3, tmp_path)


def test_rounds_may_have_more_messages_than_are_awaited_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that is posted twice would take what another model sends later."""
    graph, topology = captured("lstm"), ss.Topology.parse("cpu:1x3")
    strategies = [ss.baselines.random(graph, topology, seed=seed) for seed in (100, 101)]
    monkeypatch.setattr("soapstone.runtime.messages.AHEAD", 1)
    train_like_one_device("lstm", strategies, 3, tmp_path)


class Viewed(nn.Module):
    """Its position's gradient is a view of what other gradients are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 64), nn.Linear(64, 3)
        self.position = nn.Parameter(torch.randn(200, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.tanh(self.first(x) + self.position.unsqueeze(0)).mean(1))
        return y


def viewed() -> ss.Workload:
    torch.manual_seed(0)
    batch = torch.randn(2, 200, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    return ss.Workload(Viewed().double(), batch[:1], loss=nn.functional.mse_loss, targets=batch[1:])


def test_a_sync_leaves_alone_what_backward_still_reads(tmp_path: Path) -> None:
    graph, topology = ss.capture(viewed()), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(graph, topology)
    batches = [viewed().batch] * 8
    wanted = train_plain(viewed(), batches)

    def run(rank: int) -> Record:
        return train_rank(viewed(), graph, strategy, None, batches, training=ss.Training(bucket_bytes=0))

    for record in run_processes(2, run, tmp_path / "meeting"):
        if isinstance(record, Exception):
            raise record
        assert_same(record, wanted)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_training_goes_on_after_a_refused_batch(seed: int, tmp_path: Path) -> None:
    case = CASES["mlp"]
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.random(graph, topology, seed=seed)
    good = case.batches(1)[0]

    def run(rank: int) -> list[torch.Tensor]:
        parallel = ss.parallelize(case.workload(), graph, topology, strategy)
        losses = [parallel.step(*good)]
        for _ in range(2):
            try:
                parallel.step(*((good[0][:2], good[1]) if rank == 1 else good))
            except ss.SoapstoneError:
                losses.append(parallel.step(*good))
        return losses

    for losses in run_processes(2, run, tmp_path / "meeting"):
        if isinstance(losses, Exception):
            raise losses
        assert len(losses) == 3
        assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_ranks_that_disagree_hear_of_it_everywhere(tmp_path: Path) -> None:
    case = CASES["mlp"]
    graph = ss.capture(case.workload())
    topology = ss.Topology.parse("cpu:1x2")

    def run(rank: int) -> None:
        strategy = ss.baselines.random(graph, topology, seed=rank)
        ss.parallelize(case.workload(), graph, topology, strategy)

    for error in run_processes(2, run, tmp_path / "meeting"):
        assert isinstance(error, ss.SoapstoneError)
        assert "ranks 0 and 1 disagree on the plan" in str(error)


SCRIPT = """
import torch, torch.distributed as dist
import soapstone as ss
from tests.support.models import CASES

dist.init_process_group("gloo")
case = CASES["cnn"]
work = case.workload()
graph = ss.capture(work)
topology = ss.Topology.parse(f"cpu:1x{dist.get_world_size()}")
parallel = ss.parallelize(work, graph, topology, ss.baselines.data_parallel(graph, topology))
loss = parallel.step(*case.batches(1)[0])
if dist.get_rank() == 0:
    print(f"loss {loss.item():.6f}")
dist.destroy_process_group()
"""


@pytest.mark.long  # test_loops.py starts a script with torchrun, too
def test_torchrun_trains(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "loss " in done.stdout
