"""Batches of other shapes than the captured one train as in plain PyTorch: shorter and longer batches, other lengths of
sentences, fewer samples than devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from tests.support.microbatches import microbatched
from tests.support.models import ALL, CASES, captured
from tests.support.seeds import cases, seeds
from tests.support.shapes import resized, some_batches
from tests.support.sharding import sharded
from tests.support.training import assert_same, train_plain, train_threads

pytest.importorskip("transformers")
from tests.support import huggingface


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

    works = [ALL["mlp"].workload() for _ in range(4)]

    def act(rank: int, transport: ThreadTransport) -> dict[str, torch.Tensor]:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
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


@pytest.mark.parametrize("sizes", [(6, 5), (6, 4), (4, 3)])
def test_ranks_that_pass_different_shapes_are_told(sizes: tuple[int, int]) -> None:
    """Both shapes known, one of them new, or both."""
    whole = ALL["mlp"].workload().batch
    first, second = sizes

    def act(parallel: Parallel, rank: int) -> None:
        parallel.step(*whole)
        parallel.step(*resized(whole, 5))
        parallel.step(*resized(whole, sizes[rank]))

    wanted = f"rank 0 passes shapes [{first}, 7], [{first}, 5], but rank 1 passes [{second}, 7], [{second}, 5]"
    assert all(wanted in said for said in on_ranks(act))


@pytest.mark.parametrize("count", [3, 4])
def test_a_short_first_batch_is_not_taken_for_slices(count: int) -> None:
    """Half the samples are as many as a rank reads of a whole batch; of seven, only one rank reads four."""
    whole = ALL["mlp"].workload().batch
    if count == 4:
        whole = resized(whole, 7)
    short = resized(whole, count)
    work = replace(ALL["mlp"].workload(), inputs=whole[:1], targets=whole[1:])
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x2")

    works = [ALL["mlp"].workload() for _ in range(2)]

    def run(rank: int, transport: ThreadTransport) -> list[float]:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        for _ in range(2):
            with pytest.raises(ss.SoapstoneError, match="the first batch of a loop must have the shapes"):
                parallel.step(*short)
        return [parallel.step(*batch).item() for batch in (whole, short)]

    wanted = [ALL["mlp"].workload().compute_loss(*batch).item() for batch in (whole, short)]
    for found in ss.run_threads(2, run):
        assert found == pytest.approx(wanted, rel=1e-9)


def test_different_samples_are_refused_each_time() -> None:
    whole = ALL["mlp"].workload().batch

    def act(parallel: Parallel, rank: int) -> None:
        parallel.step(*whole)
        with pytest.raises(ss.SoapstoneError, match="pass different batches"):
            parallel.step(*(x + rank for x in resized(whole, 5)))
        parallel.step(*(x + rank for x in resized(whole, 5)))

    assert all("pass different batches" in said for said in on_ranks(act))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table, self.out = nn.Parameter(torch.randn(8, 4)), nn.Linear(4, 1)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(x + self.table[: x.shape[1]]))  # type: ignore[no-any-return]


def test_gradients_that_a_step_would_not_sum_are_refused() -> None:
    x = torch.randn(4, 6, 4, dtype=torch.float64)
    work = ss.Workload(Positions(), (x,), loss=torch.mean)
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x2")
    works = [replace(work, model=Positions()) for _ in range(2)]

    def run(rank: int, transport: ThreadTransport) -> torch.Tensor:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        parallel.step(x, sync=False)
        with pytest.raises(
            ss.SoapstoneError, match=r"would not be summed; end the accumulation with a batch of the capt"
        ):
            parallel.step(x[:, :3])
        parallel.step(x[:, :3], sync=False)
        parallel.step(x)
        found = parallel.gradients()["table"]
        parallel.step(x, sync=False)
        parallel.zero_grad()
        parallel.step(x[:, :3])  # nothing is left of the step before
        return found

    for part in (x, x[:, :3], x):
        work.compute_loss(part).backward()  # type: ignore[no-untyped-call]
    for found in ss.run_threads(2, run):
        wanted = work.model.get_parameter("table").grad
        assert wanted is not None
        assert torch.allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("devices", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_local_statistics_are_those_of_the_first_samples(devices: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 4, 4).double(), torch.randint(0, 4, (8,))

    def make() -> ss.Workload:
        torch.manual_seed(2)
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 4)]
        return ss.Workload(nn.Sequential(*layers).double(), (x,), loss=nn.functional.cross_entropy, targets=(y,))

    graph, topology = ss.capture(make(), batch_norm="local"), ss.Topology.parse("cpu:1x4")
    data = ss.baselines.data_parallel(graph, topology)
    strategy = ss.Strategy(graph, topology, {name: replace(each, devices=devices) for name, each in data.items()})
    works = [make() for _ in range(4)]

    def run(rank: int, transport: ThreadTransport) -> torch.Tensor:
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        for samples in (8, 3):
            parallel.step(x[:samples], y[:samples])
        return parallel.state_dict()["1.running_mean"]

    first = make().model
    for samples in (2, 1):  # those of the first part
        first[1](first[0](x[:samples]))  # type: ignore[index]
    for found in ss.run_threads(4, run):
        assert torch.allclose(found, first.state_dict()["1.running_mean"], rtol=1e-9)


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
            ss.SoapstoneError, match=r"a batch of shapes .* cannot be trained on under this strategy"
        ) as caught:
            parallel.step(*resized(make().batch, 1, 5))
        return str(caught.value)

    assert all("the model runs other ops for it" in said for said in ss.run_threads(2, act))
