"""Any strategy trains like one device: many random strategies on thread ranks that match messages by order alone."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport

from .models import CASES
from .training import SEED, STEPS, Record, assert_same, train_plain, train_rank

SEEDS = 75  # random strategies a model


@cache
def reference(name: str) -> Record:
    return train_plain(CASES[name])


@cache
def captured(name: str) -> ss.OperatorGraph:
    return ss.capture(CASES[name].workload())


def train(name: str, topology: ss.Topology, strategy: ss.Strategy, *, strict: bool = True) -> list[Record]:
    case, graph = CASES[name], captured(name)
    workloads = [case.workload() for _ in topology.devices]
    batches = case.batches(STEPS)
    torch.manual_seed(SEED)

    def run(rank: int, transport: ThreadTransport) -> Record:
        return train_rank(case, workloads[rank], graph, topology, strategy, transport, batches)

    return ss.run_threads(topology.num_devices, run, strict=strict)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_strategy_trains_like_one_device(name: str, seed: int) -> None:
    topology = ss.Topology.parse(f"cpu:1x{1 + seed % 8}")
    strategy = ss.baselines.random(captured(name), topology, seed=seed)
    for record in train(name, topology, strategy):
        assert_same(record, reference(name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("strict", [True, False])
def test_data_parallelism_trains_like_one_device(name: str, devices: int, strict: bool) -> None:
    topology = ss.Topology.parse(f"cpu:1x{devices}")
    strategy = ss.baselines.data_parallel(captured(name), topology)
    for record in train(name, topology, strategy, strict=strict):
        assert_same(record, reference(name))
