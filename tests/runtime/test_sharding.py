"""Ranks that keep shares of parameters: what each has, and that all a user does with a model still works."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.transports import run_threads
from tests.support.models import CASES, captured
from tests.support.sharding import sharded
from tests.support.training import SEED

T = TypeVar("T")
RANKS = 3


def on_ranks(name: str, shard: str, act: Callable[[Parallel, int], T]) -> list[T]:
    """Each rank's model under sharded data parallelism, and what is done with it."""
    graph = captured(name)
    data = ss.baselines.data_parallel(graph, ss.Topology.parse(f"cpu:1x{RANKS}"))
    strategy = sharded(data, 0, (shard,))
    torch.manual_seed(SEED)

    def rank_of(rank: int, transport: ThreadTransport) -> T:
        work = CASES[name].workload()
        parallel = ss.parallelize(work, graph, strategy.topology, strategy, transport=transport)
        return act(parallel, rank)

    return run_threads(RANKS, rank_of, strict=True)


def resident(parallel: Parallel) -> int:
    """Bytes of memory that the rank's weights have."""
    shards = parallel._store.shards.values()
    return sum(shard.tensor.untyped_storage().nbytes() for shard in shards if shard.tensor.requires_grad)


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_a_rank_updates_its_share(shard: str) -> None:
    sizes = on_ranks("mlp", shard, lambda parallel, _: {n: p.numel() for n, p in parallel.named_parameters()})
    whole = {name: p.numel() for name, p in CASES["mlp"].workload().model.named_parameters()}
    assert {name: sum(each[name] for each in sizes) for name in whole} == whole
    assert sizes[0] == {name: -(-count // RANKS) for name, count in whole.items()}


def test_weights_lie_there_only_while_they_are_used() -> None:
    def act(parallel: Parallel, _: int) -> list[int]:
        found = [resident(parallel)]
        for batch in CASES["mlp"].batches(2):
            parallel.step(*batch)
            found.append(resident(parallel))
        return found

    assert on_ranks("mlp", "all", act) == [[0, 0, 0]] * RANKS
    assert all(min(found) > 0 for found in on_ranks("mlp", "optimizer", act))


def test_the_whole_gradient_is_gone_when_it_is_summed() -> None:
    def act(parallel: Parallel, _: int) -> bool:
        parallel.step(*CASES["mlp"].batches(1)[0])
        return any(leaf.grad is not None for leaf in parallel._store.leaves())

    assert on_ranks("mlp", "all", act) == [False] * RANKS


@pytest.mark.parametrize("shard", ["optimizer", "all"])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clipping_counts_every_element_once(shard: str, norm_type: float) -> None:
    work, batch = CASES["mlp"].workload(), CASES["mlp"].batches(1)[0]
    work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]
    expected = torch.nn.utils.clip_grad_norm_(work.model.parameters(), 0.01, norm_type)
    gradients = {name: p.grad for name, p in work.model.named_parameters()}

    def act(parallel: Parallel, _: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parallel.step(*batch)
        return parallel.clip_grad_norm_(0.01, norm_type), parallel.gradients()

    for norm, found in on_ranks("mlp", shard, act):
        torch.testing.assert_close(norm, expected, rtol=1e-9, atol=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_gradients_of_several_batches_add_up(shard: str) -> None:
    batches = CASES["mlp"].batches(3)
    work = CASES["mlp"].workload()
    for batch in batches:
        work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]

    def act(parallel: Parallel, _: int) -> dict[str, torch.Tensor]:
        for number, batch in enumerate(batches):
            parallel.step(*batch, sync=number == len(batches) - 1)
        return parallel.gradients()

    for found in on_ranks("mlp", shard, act):
        for name, parameter in work.model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_states_are_loaded_and_given(shard: str) -> None:
    other = {name: torch.randn_like(value) for name, value in CASES["mlp"].workload().model.state_dict().items()}
    batch = CASES["mlp"].batches(1)[0]
    work = CASES["mlp"].workload()
    work.model.load_state_dict(other)
    expected = work.compute_loss(*batch)

    def act(parallel: Parallel, _: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parallel.load_state_dict(other)
        return parallel.step(*batch), parallel.state_dict()

    for loss, state in on_ranks("mlp", shard, act):
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-12)
        assert all(torch.equal(state[name], value) for name, value in other.items())


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_evaluation_sees_what_the_optimizer_did(shard: str) -> None:
    batch = CASES["mlp"].batches(1)[0]
    work = CASES["mlp"].workload()
    with torch.no_grad():
        for parameter in work.model.parameters():
            parameter.add_(0.5)
    work.model.eval()
    expected = work.model(batch[0]).detach()

    def act(parallel: Parallel, _: int) -> torch.Tensor:
        parallel.step(*batch)
        with torch.no_grad():
            for parameter in parallel.parameters():
                parameter.add_(0.5)
        return parallel.evaluate(batch[0])

    for found in on_ranks("mlp", shard, act):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_weights_travel_in_the_type_in_which_they_are_used() -> None:
    """Under autocast shares of float32 weights are gathered in bfloat16, and the numbers stay the same."""

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4))
    x, y = torch.randn(6, 6), torch.randn(6, 4)

    def work() -> ss.Workload:
        return ss.Workload(copy.deepcopy(model), (x,), loss=nn.functional.mse_loss, targets=(y,))

    graph, topology = ss.capture(work(), precision="autocast:cpu"), ss.Topology.parse(f"cpu:1x{RANKS}")
    types = dict(zip((tensor.name for tensor in graph.tensors), graph.read_types))
    assert {name for name, kind in types.items() if kind == "bfloat16"} >= {"0.weight", "0.bias", "2.weight"}
    assert types["1.weight"] == "float32"
    found = {}
    for baseline in (ss.baselines.data_parallel, ss.baselines.zero1, ss.baselines.fsdp):
        strategy = baseline(graph, topology)

        def act(rank: int, transport: ThreadTransport, strategy: ss.Strategy = strategy) -> dict[str, torch.Tensor]:
            parallel = ss.parallelize(work(), graph, topology, strategy, transport=transport)
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
            for _ in range(3):
                parallel.step(x, y)
                optimizer.step()
            return parallel.state_dict()

        found[baseline.__name__] = run_threads(RANKS, act)[0]
        moved = ss.simulate(graph, topology, strategy, training=ss.Training(bucket_bytes=0)).moved["gather"]
        elements = {name: math.prod(p.shape) for name, p in model.named_parameters()}
        once = sum(count * (2 if types[name] == "bfloat16" else 4) for name, count in elements.items()) * (RANKS - 1)
        assert moved == once * {"data_parallel": 0, "zero1": 1, "fsdp": 2}[baseline.__name__]
    for name, value in found["data_parallel"].items():
        torch.testing.assert_close(found["zero1"][name], value, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found["fsdp"][name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_a_share_whose_data_was_replaced_is_trained_on(shard: str) -> None:
    """As averages of weights are swapped in: parts read the new values, on the rank that holds them, too."""
    batch = CASES["mlp"].batches(1)[0]

    def act(parallel: Parallel, _: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        for parameter in parallel.parameters():
            parameter.data = parameter.data + 0.5
        return parallel.step(*batch), parallel.state_dict()

    for loss, state in on_ranks("mlp", shard, act):
        plain = CASES["mlp"].workload()
        plain.model.load_state_dict(state)
        torch.testing.assert_close(loss, plain.compute_loss(*batch).detach(), rtol=1e-9, atol=0)
