"""What evaluation, state dicts, checkpoints and exports say about buffers that steps change, under any strategy: the
same on every rank, and what the plain model says with that state."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.checkpoints import whole_state
from tests.support.microbatches import microbatched, train_accumulating
from tests.support.models import ONE_AT_A_TIME, seeded
from tests.support.seeds import cases
from tests.support.sharding import recomputed, sharded
from tests.support.training import optimizer_of, train_plain

State = dict[str, torch.Tensor]
STEPS, SAMPLES = 3, 32


class Counted(nn.Module):
    """Batch norms beside buffers of a user's own: one that counts, one that is read, one that is neither, and one that
    no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.hidden, self.plain = nn.Linear(4 * 16, 6), nn.BatchNorm1d(6, affine=False, momentum=0.5)
        self.head = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.linspace(1, 2, 6))
        self.register_buffer("unread", torch.arange(3))
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        x = torch.relu(self.norm(self.stem(x))).flatten(1)
        y: torch.Tensor = self.head(self.plain(self.hidden(x)) * self.scale + self.shift)
        return y


def work_of() -> ss.Workload:
    with seeded(3):
        x, y = torch.randn(SAMPLES, 3, 4, 4, dtype=torch.float64) * 2 + 1, torch.randint(0, 3, (SAMPLES,))
        x[SAMPLES // 2 :] += 1  # the later samples have other statistics
        return ss.Workload(Counted().double(), (x,), loss=F.cross_entropy, targets=(y,))


def graph_of(batch_norm: str) -> ss.OperatorGraph:
    with ONE_AT_A_TIME:
        return _graph_of(batch_norm)


@cache
def _graph_of(batch_norm: str) -> ss.OperatorGraph:
    return ss.capture(work_of(), batch_norm=batch_norm)


def _backwards(graph: ss.OperatorGraph, topology: ss.Topology) -> ss.Strategy:
    """Data parallelism whose first samples are on the last device."""
    data = ss.baselines.data_parallel(graph, topology)
    return data.replace({name: replace(each, devices=each.devices[::-1]) for name, each in data.items()})


def _mixed(seed: int) -> Callable[[ss.OperatorGraph, ss.Topology], ss.Strategy]:
    def strategy(graph: ss.OperatorGraph, topology: ss.Topology) -> ss.Strategy:
        drawn = microbatched(graph, topology, 2, seed) if seed % 3 == 2 else None
        return recomputed(sharded(drawn or ss.baselines.random(graph, topology, seed=seed), seed), seed)

    return strategy


STRATEGIES: dict[str, Callable[[ss.OperatorGraph, ss.Topology], ss.Strategy]] = {
    "data": ss.baselines.data_parallel,
    "backwards": _backwards,
    "model": ss.baselines.model_parallel,
    "pipeline": lambda graph, topology: ss.baselines.baseline("pp2-m4", graph, topology),
    "zero1": ss.baselines.zero1,
    "fsdp": ss.baselines.fsdp,
    "recomputed": lambda graph, topology: recomputed(ss.baselines.data_parallel(graph, topology), 0, 1.0),
    "accumulated": lambda graph, topology: microbatched(graph, topology, 2, 1),
}


@dataclass(frozen=True)
class Seen:
    """What a rank says of its training."""

    outputs: torch.Tensor
    state: State


def seen(parallel: Parallel, x: torch.Tensor) -> Seen:
    outputs = parallel.evaluate(x)  # before the state dict, which may bring buffers up to date
    return Seen(outputs, parallel.state_dict())


def trained(strategy: ss.Strategy, folder: Path) -> list[Seen]:
    works = [work_of() for _ in strategy.topology.devices]

    def run(rank: int, transport: ThreadTransport) -> Seen:
        work = works[rank]
        parallel = ss.parallelize(work, strategy.graph, strategy.topology, strategy, transport=transport)
        optimizer = optimizer_of(parallel.parameters())
        for _ in range(STEPS):
            parallel.step(*work.batch)
            optimizer.step()
        parallel.save(folder, optimizer, step=STEPS)
        return seen(parallel, work.batch[0])

    return ss.run_threads(len(works), run, strict=True, timeout=60)


def loaded(strategy: ss.Strategy, folder: Path) -> list[Seen]:
    works = [work_of() for _ in strategy.topology.devices]

    def run(rank: int, transport: ThreadTransport) -> Seen:
        parallel = ss.parallelize(works[rank], strategy.graph, strategy.topology, strategy, transport=transport)
        parallel.load(folder)
        return seen(parallel, works[rank].batch[0])

    return ss.run_threads(len(works), run, strict=True, timeout=60)


def assert_equal(found: State, wanted: State) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def assert_trained_alike(found: State, strategy: ss.Strategy) -> None:
    """Batch norm of the whole batch, or of each microbatch, is what plain torch has."""
    batches = [work_of().batch] * STEPS
    count = strategy.microbatches
    wanted = train_accumulating(work_of(), strategy.graph, batches, count) if count > 1 else None
    for name, tensor in (wanted or train_plain(work_of(), batches)).state.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch_norm", ["local", "global"])
@pytest.mark.parametrize("name", cases([*STRATEGIES, *range(11)], long=["backwards", "model", "zero1", *range(1, 10)]))
def test_everything_said_about_buffers_agrees(name: str | int, batch_norm: str, tmp_path: Path) -> None:
    graph, number = graph_of(batch_norm), name if isinstance(name, int) else 0
    topology = ss.Topology.parse(f"cpu:1x{2 + number % 3}")
    make = _mixed(name) if isinstance(name, int) else STRATEGIES[name]
    strategy = make(graph, topology)
    first, *others = trained(strategy, tmp_path)
    plain = work_of()
    plain.model.load_state_dict(first.state)
    with torch.no_grad():
        wanted = plain.model.eval()(*plain.inputs)
    other = ss.baselines.random(graph, ss.Topology.parse("cpu:1x3"), seed=number)
    for rank in (first, *others, *loaded(other, tmp_path)):
        torch.testing.assert_close(rank.outputs, wanted, rtol=1e-9, atol=1e-12)
        assert_equal(rank.state, first.state)
    assert_equal(whole_state(tmp_path), first.state)
    assert first.state["seen"] == first.state["norm.num_batches_tracked"] == STEPS * strategy.microbatches
    if batch_norm == "global":
        assert_trained_alike(first.state, strategy)


def _like_ddp() -> State:
    """Two replicas with the mean of their gradients; the first one's buffers."""
    work = work_of()
    x, y = work.batch
    models = [deepcopy(work.model) for _ in range(2)]
    optimizers = [optimizer_of(model.parameters()) for model in models]
    for _ in range(STEPS):
        for model, part, target in zip(models, x.chunk(2), y.chunk(2)):
            model.zero_grad()
            F.cross_entropy(model(part), target).backward()  # type: ignore[no-untyped-call]
        for one, other in zip(*(model.parameters() for model in models)):
            assert one.grad is not None
            assert other.grad is not None
            one.grad, other.grad = (one.grad + other.grad) / 2, (one.grad + other.grad) / 2
        for optimizer in optimizers:
            optimizer.step()
    return models[0].state_dict()


@pytest.mark.parametrize("name", ["data", "backwards", "zero1", "fsdp"])
def test_local_batch_norm_has_the_buffers_of_the_first_samples(name: str, tmp_path: Path) -> None:
    """As DistributedDataParallel has rank 0's."""
    state = trained(STRATEGIES[name](graph_of("local"), ss.Topology.parse("cpu:1x2")), tmp_path)[0].state
    for key, tensor in _like_ddp().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch_norm", ["local", "global"])
def test_one_value_per_channel_is_refused_as_torch_refuses_it(batch_norm: str) -> None:
    """Parts or microbatches of one sample would have no variance."""
    graph, topology = graph_of(batch_norm), ss.Topology.parse("cpu:1x1")
    data = ss.baselines.data_parallel(graph, topology)
    parts = data.replace({"hidden": ss.Configuration({"sample": SAMPLES}, (0,) * SAMPLES)})
    strategy = parts if batch_norm == "local" else microbatched(graph, topology, SAMPLES, 0)

    def run(rank: int, transport: ThreadTransport) -> None:
        with pytest.raises(ss.SoapstoneError, match=r"op '.*' has a batch norm that would get one value per channel"):
            ss.parallelize(work_of(), graph, topology, strategy, transport=transport)

    ss.run_threads(1, run)
