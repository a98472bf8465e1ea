"""Checkpoints: training goes on under any other strategy as if nothing had happened."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.checkpoints import latest
from soapstone.strategy import Configuration
from tests.support.models import ALL, ONE_AT_A_TIME
from tests.support.seeds import seeds
from tests.support.training import SEED, Record, assert_same

STEPS = 2  # before the checkpoint, and after it
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


def strategy_of(graph: ss.OperatorGraph, devices: int, seed: int, shard: str) -> ss.Strategy:
    topology = ss.Topology.parse(f"cpu:1x{devices}")
    found = ss.baselines.random(graph, topology, seed=seed)
    trained = {op.name for op, tensors in zip(graph.ops, graph.trains) if tensors}
    changed = {n: Configuration(c.degrees, c.devices, shard=shard) for n, c in found.items() if n in trained}
    return found.replace(changed)


def run(
    name: str, strategy: ss.Strategy, optimizer: str, steps: int, folder: Path | None = None, load: bool = False
) -> Record:
    """Rank 0's record of some steps; loaded before, or saved after."""
    workloads = [ALL[name].workload() for _ in strategy.topology.devices]
    torch.manual_seed(SEED)

    def act(rank: int, transport: ThreadTransport) -> Record:
        work, graph = workloads[rank], captured(name)
        parallel = ss.parallelize(work, graph, strategy.topology, strategy, transport=transport)
        chosen = OPTIMIZERS[optimizer](parallel.parameters())
        first = parallel.load(folder, chosen) if load and folder else 0
        losses = []
        for _ in range(steps):
            losses.append(parallel.step(*work.batch))
            chosen.step()
        if folder and not load:
            parallel.save(folder, chosen, step=first + steps)
        return Record(losses, [], parallel.state_dict())

    return ss.run_threads(strategy.topology.num_devices, act, timeout=60)[0]


@cache
def captured(name: str) -> ss.OperatorGraph:
    with ONE_AT_A_TIME:
        return ss.capture(ALL[name].workload())


@pytest.mark.parametrize("name", ["cnn", "gpt", "lstm", "tokened"])
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_training_goes_on_under_another_strategy(name: str, seed: int, tmp_path: Path) -> None:
    graph, shards = captured(name), ("none", "all", "optimizer")
    optimizer = ("adamw", "momentum")[seed % 2]
    before = strategy_of(graph, 2 + seed % 3, seed, shards[seed % 3])
    after = strategy_of(graph, 3 - seed % 2, seed + 100, shards[(seed + 1) % 3])
    whole = run(name, before, optimizer, 2 * STEPS)
    run(name, before, optimizer, STEPS, tmp_path)
    found = run(name, after, optimizer, STEPS, tmp_path, load=True)
    assert_same(found, Record(whole.losses[STEPS:], [], whole.state))


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    run("lstm", strategy_of(captured("lstm"), 2, 0, "none"), "adamw", 1, tmp_path)
    with pytest.raises(ss.SoapstoneError, match=r"it is of another model|has shape"):
        run("mlp", strategy_of(captured("mlp"), 2, 0, "none"), "adamw", 1, tmp_path, load=True)
    saved = latest(tmp_path)
    assert saved == tmp_path / "step-000000001"
    graph, topology = captured("lstm"), ss.Topology.parse("cpu:1x2")
    assert ss.Strategy.load(saved / "strategy.json", graph, topology) == strategy_of(graph, 2, 0, "none")


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(ss.SoapstoneError, match="has no checkpoint"):
        run("mlp", strategy_of(captured("mlp"), 2, 0, "none"), "adamw", 1, tmp_path, load=True)
