"""Batches of other shapes than the captured one train as in plain PyTorch: shorter and longer batches, other lengths of
sentences, fewer samples than devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from tests.support.microbatches import microbatched
from tests.support.models import ALL, CASES, captured
from tests.support.seeds import cases, seeds
from tests.support.sharding import sharded
from tests.support.training import Batches, assert_same, train_plain, train_threads

pytest.importorskip("transformers")
from tests.support import huggingface


def resized(batch: tuple[torch.Tensor, ...], *shape: int) -> tuple[torch.Tensor, ...]:
    """So many samples, and places in each; what is missing is there twice."""
    for axis, size in enumerate(shape):
        batch = tuple(torch.cat([x, x], axis).narrow(axis, 0, size).contiguous() for x in batch)
    return batch


def some_batches(name: str) -> Batches:
    whole = ALL[name].workload().batch
    size = len(whole[0])
    lengths = [(size, 3)] if name in ("gpt", "transformer") else []
    shapes = [(size,), (size - 1,), (2,), (size + 1,), *lengths, (size,), (2,)]
    return [resized(whole, *shape) for shape in shapes]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(3, 12))
def test_a_strategy_trains_on_batches_of_other_shapes(name: str, seed: int) -> None:
    graph, topology, batches = captured(name), ss.Topology.parse(f"cpu:1x{2 + seed % 3}"), some_batches(name)
    strategy = ss.baselines.random(graph, topology, seed=seed) if seed else ss.baselines.data_parallel(graph, topology)
    wanted = train_plain(ALL[name].workload(), batches)
    for found in train_threads(ALL[name].workload, graph, strategy, batches):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", ["all", "optimizer"])
def test_shards_stay_where_they_are(kind: str) -> None:
    graph, topology = captured("gpt"), ss.Topology.parse("cpu:1x2")
    strategy = sharded(ss.baselines.data_parallel(graph, topology), 0, (kind,))
    whole = ALL["gpt"].workload().batch
    batches = [resized(whole, *shape) for shape in [(4,), (3,), (5, 4), (4,)]]
    wanted = train_plain(ALL["gpt"].workload(), batches)
    for found in train_threads(ALL["gpt"].workload, graph, strategy, batches):
        assert_same(found, wanted)


def test_a_batch_is_cut_into_as_many_microbatches_as_it_has_samples_for() -> None:
    graph = captured("mlp")
    strategy = microbatched(graph, ss.Topology.parse("cpu:1x3"), 3, seed=1)
    batches = [resized(ALL["mlp"].workload().batch, size) for size in (6, 4, 1, 6)]
    wanted = train_plain(ALL["mlp"].workload(), batches)
    for found in train_threads(ALL["mlp"].workload, graph, strategy, batches):
        assert_same(found, wanted)


@pytest.mark.parametrize(
    "name", cases(["llama", "qwen3", "gpt2", "bert", "t5", "mixtral"], long={"qwen3", "gpt2", "t5", "mixtral", "bert"})
)
def test_an_epoch_of_sentences_of_many_lengths_trains_as_in_plain_pytorch(name: str) -> None:
    """As a collator pads them: each batch to its longest."""
    with huggingface.all_in_float64():
        work = huggingface.still(huggingface.doubled(name))
        batches = [resized(work.batch, *shape) for shape in [(4, 6), (4, 3), (4, 5), (4, 3), (3, 6)]]
        wanted = train_plain(huggingface.eager_experts(huggingface.still(huggingface.doubled(name))), batches)
        graph = ss.capture(work)
        strategy = ss.baselines.baseline("fsdp", graph, ss.Topology.parse("cpu:1x2"))
        for found in train_threads(lambda: huggingface.still(huggingface.doubled(name)), graph, strategy, batches):
            assert_same(found, wanted)


def test_gradients_accumulate_over_shapes() -> None:
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x4")
    whole = ALL["mlp"].workload().batch
    batches = [whole, resized(whole, 5), resized(whole, 1)]
    work = ALL["mlp"].workload()
    for batch in batches:
        work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]

    def act(rank: int, transport: ThreadTransport) -> dict[str, torch.Tensor]:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(ALL["mlp"].workload(), graph, topology, strategy, transport=transport)
        for number, batch in enumerate(batches):
            parallel.step(*batch, sync=number == len(batches) - 1)
        return parallel.gradients()

    for found in ss.run_threads(4, act):
        for name, parameter in work.model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(found[name], parameter.grad, rtol=1e-9, atol=1e-12), name


def on_ranks(act: Callable[[Parallel, int], object]) -> list[str]:
    """What each of two ranks under data parallelism is told of a step."""
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x2")

    def run(rank: int, transport: ThreadTransport) -> str:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(ALL["mlp"].workload(), graph, topology, strategy, transport=transport)
        with pytest.raises(ss.SoapstoneError) as caught:
            act(parallel, rank)
        return str(caught.value)

    return ss.run_threads(2, run)


def test_ranks_that_pass_different_shapes_are_told() -> None:
    whole = ALL["mlp"].workload().batch

    def act(parallel: Parallel, rank: int) -> None:
        parallel.step(*whole)
        parallel.step(*resized(whole, 5))
        parallel.step(*resized(whole, 5 if rank else 6))

    assert all("rank 0 passes [6, 7], [6, 5], but rank 1 passes [5, 7], [5, 5]" in said for said in on_ranks(act))


def test_a_new_shape_on_one_rank_alone_is_told() -> None:
    whole = ALL["mlp"].workload().batch

    def act(parallel: Parallel, rank: int) -> None:
        parallel.step(*whole)
        parallel.step(*resized(whole, 6 - rank))

    assert all("pass the same batch on every rank" in said for said in on_ranks(act))


def test_a_short_first_batch_is_not_taken_for_slices() -> None:
    """Half the samples are as many as a rank reads of a whole batch."""
    half = resized(ALL["mlp"].workload().batch, 3)
    said = on_ranks(lambda parallel, rank: parallel.step(*half))
    assert all("the first batch of a loop must have the shapes that were captured" in each for each in said)


def test_ranks_that_pass_slices_cannot_change_the_shape() -> None:
    whole = ALL["mlp"].workload().batch

    def act(parallel: Parallel, rank: int) -> None:
        parallel.step(*(x[sides] for x, sides in zip(whole, parallel.slices)))
        parallel.step(*resized(whole, 5))

    assert all("pass whole batches" in said for said in on_ranks(act))


def test_a_batch_that_makes_another_graph_is_refused() -> None:
    def make() -> ss.Workload:
        return huggingface.still(huggingface.workload("bert"))

    graph, topology = ss.capture(make()), ss.Topology.parse("cpu:1x2")

    def act(rank: int, transport: ThreadTransport) -> str:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(make(), graph, topology, strategy, transport=transport)
        with pytest.raises(
            ss.SoapstoneError, match=r"a batch of .* cannot be trained on under this strategy"
        ) as caught:
            parallel.step(*resized(make().batch, 1, 5))
        return str(caught.value)

    assert all("it makes other ops of the model" in said for said in ss.run_threads(2, act))
