"""Any strategy trains like one device: many random strategies on thread ranks that match messages by order alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.graph import Op
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.draws import CounterDraws
from tests.support.models import ALL, CASES, MORE, captured
from tests.support.seeds import seeds
from tests.support.sharding import recomputed, sharded
from tests.support.training import STEPS, Record, assert_same, train_plain, train_threads
from tests.support.waiting import HANG


@cache
def reference(name: str) -> Record:
    return train_plain(ALL[name].workload(), ALL[name].batches(STEPS))


def train(name: str, strategy: ss.Strategy, *, strict: bool = True) -> list[Record]:
    case = ALL[name]
    return train_threads(case.workload, captured(name), strategy, case.batches(STEPS), strict=strict)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(4, 48))
def test_a_random_strategy_trains_like_one_device(name: str, seed: int) -> None:
    topology = ss.Topology.parse(f"cpu:1x{1 + seed % 8}")
    strategy = recomputed(sharded(ss.baselines.random(captured(name), topology, seed=seed), seed), seed)
    for record in train(name, strategy):
        assert_same(record, reference(name))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_sharded_data_parallelism_trains_like_one_device(name: str, shard: str) -> None:
    topology = ss.Topology.parse("cpu:1x3")
    strategy = recomputed(sharded(ss.baselines.data_parallel(captured(name), topology), 0, (shard,)), 0)
    for record in train(name, strategy):
        assert_same(record, reference(name))


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("seed", seeds(1, 7))
def test_models_of_more_families_train_like_one_device(name: str, seed: int) -> None:
    test_a_random_strategy_trains_like_one_device(name, seed)


def test_what_follows_a_sum_reads_weights_that_were_freed_before_it() -> None:
    """An attention's projection slices its weight; its parts are summed over two devices, with shares on two each."""
    graph, topology = captured("transformer"), ss.Topology.parse("cpu:1x4")
    split = {op.name: ss.Configuration({"in": 2, "k": 2}, (0, 1, 2, 3), shard="all") for op in graph.ops if _slices(op)}
    data = ss.baselines.data_parallel(graph, topology)
    assert split
    for record in train("transformer", data.replace(split)):
        assert_same(record, reference("transformer"))


def _slices(op: Op) -> bool:
    return op.combine is not None and any(step.kind == "slice" for step in op.steps[: op.head])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("strict", [True, False])
def test_data_parallelism_trains_like_one_device(name: str, devices: int, strict: bool) -> None:
    topology = ss.Topology.parse(f"cpu:1x{devices}")
    strategy = ss.baselines.data_parallel(captured(name), topology)
    for record in train(name, strategy, strict=strict):
        assert_same(record, reference(name))


def test_gradients_that_share_memory_are_not_added_to_in_place() -> None:
    """The token's gradient is a view of the positions' one, and three segments of device 1 add to both."""
    graph, topology = captured("tokened"), ss.Topology.parse("cpu:1x2")
    strategy = ss.Strategy(graph, topology, {op.name: ss.Configuration({}, (0,)) for op in graph.ops})
    add = next(op.name for op in graph.ops if any(step.kind == "cat" for step in op.steps))
    strategy = strategy.replace({add: ss.Configuration({"sample": 4, "length": 2}, (1,) * 8)})
    for record in train("tokened", strategy):
        assert_same(record, reference("tokened"))


@pytest.mark.parametrize("degrees", [{}, {"channel": 2}, {"sample": 2}])
@pytest.mark.parametrize("devices", [1, 2])
def test_gradients_that_share_memory_are_gathered_apart(degrees: dict[str, int], devices: int) -> None:
    """A part of a shard is added to, or set, in place."""
    graph, topology = captured("two biases"), ss.Topology.parse(f"cpu:1x{devices}")
    strategy = ss.Strategy(graph, topology, {op.name: ss.Configuration({}, (0,)) for op in graph.ops})
    places = tuple(i % devices for i in range(prod(degrees.values())))
    strategy = strategy.replace({"second": ss.Configuration(degrees, places)})
    for record in train("two biases", strategy):
        assert_same(record, reference("two biases"))


def test_gradients_that_share_memory_are_clipped_once() -> None:
    work, batch = ALL["two biases"].workload(), ALL["two biases"].batches(1)[0]
    work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]
    for parameter in work.model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clone()
    torch.nn.utils.clip_grad_norm_(work.model.parameters(), 0.01)
    topology = ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(captured("two biases"), topology)

    def act(rank: int, transport: ThreadTransport) -> dict[str, torch.Tensor]:
        other = ALL["two biases"].workload()
        parallel = ss.parallelize(other, captured("two biases"), topology, strategy, transport=transport)
        for _ in range(2):  # part by part, then recorded
            parallel.step(*batch)
            parallel.clip_grad_norm_(0.01)
        return parallel.gradients()

    for name, found in ss.run_threads(1, act)[0].items():
        assert torch.allclose(found, work.model.get_parameter(name).grad, rtol=1e-9), name  # type: ignore[arg-type]


def parallel_on(name: str, rank: int, transport: ThreadTransport, **changes: Any) -> Parallel:
    topology = changes.pop("topology", ss.Topology.parse(f"cpu:1x{transport.size}"))
    graph = captured(name)
    strategy = changes.pop("strategy", None) or ss.baselines.data_parallel(graph, topology)
    work = changes.pop("work", None) or CASES[name].workload()
    return ss.parallelize(work, graph, topology, strategy, transport=transport, **changes)


def messages(ranks: int, function: Callable[[int, ThreadTransport], object]) -> list[str]:
    """The SoapstoneError of every rank; fails where a rank raised none."""

    def run(rank: int, transport: ThreadTransport) -> str:
        with pytest.raises(ss.SoapstoneError) as caught:
            function(rank, transport)
        return str(caught.value)

    return ss.run_threads(ranks, run, strict=True)


def test_a_strategy_for_another_graph_is_refused_on_every_rank() -> None:
    topology = ss.Topology.parse("cpu:1x2")
    other = ss.baselines.data_parallel(captured("mlp"), topology)

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel_on("cnn", rank, transport, strategy=other if rank == 1 else None)

    for message in messages(2, act):
        assert message.startswith("rank 1: the strategy is for graph")


def test_ranks_that_disagree_on_the_plan_all_hear_of_it() -> None:
    topology = ss.Topology.parse("cpu:1x3")

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel_on("mlp", rank, transport, strategy=ss.baselines.random(captured("mlp"), topology, seed=rank // 2))

    for message in messages(3, act):
        assert "ranks 0 and 2 disagree on the plan" in message


def test_different_initial_weights_are_found() -> None:
    def act(rank: int, transport: ThreadTransport) -> None:
        work = CASES["mlp"].workload()
        with torch.no_grad():
            next(work.model.parameters()).add_(rank)
        parallel_on("mlp", rank, transport, work=work, weights="verify")

    for message in messages(2, act):
        assert "ranks 0 and 1 disagree on the initial weights" in message


def test_every_rank_gets_the_weights_of_rank_0() -> None:
    wanted = CASES["cnn"].workload().model.state_dict()

    def act(rank: int, transport: ThreadTransport) -> None:
        work = CASES["cnn"].workload()
        with torch.no_grad():
            for tensor in work.model.state_dict().values():
                tensor.add_(rank)
        state = parallel_on("cnn", rank, transport, work=work).state_dict()
        assert all(torch.equal(state[name], wanted[name]) for name in wanted)

    ss.run_threads(2, act, strict=True)


BAD_BATCHES: dict[str, tuple[str, Callable[[tuple[torch.Tensor, torch.Tensor]], tuple[Any, ...]], str]] = {
    "one tensor": ("mlp", lambda batch: batch[:1], "step takes 2 tensors"),
    "shape": ("mlp", lambda batch: (batch[0][..., None], batch[1]), "tensor 0 of the batch is float64 of shape"),
    "dtype": ("mlp", lambda batch: (batch[0].float(), batch[1]), "float32 of shape"),
    "no tensor": ("mlp", lambda batch: (batch[0], 3), "tensor 1 of the batch is int"),
    "token": ("lstm", lambda batch: (batch[0] + 5, batch[1]), "but op 'embed' takes 0 to 10"),
    "class": ("cnn", lambda batch: (batch[0], batch[1] + 5), "but op 'cross_entropy' takes 0 to 4"),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_bad_batch_on_one_rank_stops_all_before_anything_moves(kind: str) -> None:
    name, spoil, wanted = BAD_BATCHES[kind]
    batch = CASES[name].batches(1)[0]

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = parallel_on(name, rank, transport)
        before = parallel.state_dict()
        try:
            parallel.step(*(spoil(batch) if rank == 1 else batch))
        finally:
            after = parallel.state_dict()
            assert all(torch.equal(before[key], after[key]) for key in before)

    for message in messages(2, act):
        assert message.startswith("rank 1: ")
        assert wanted in message


def test_different_batches_are_found_at_the_first_step() -> None:
    batches = CASES["mlp"].batches(2)

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel_on("mlp", rank, transport).step(*batches[rank])

    for message in messages(2, act):
        assert "ranks 0 and 1 pass different batches" in message


def _frozen(work: ss.Workload) -> None:
    work.model.requires_grad_(False)


def _floats(work: ss.Workload) -> None:
    work.model.float()


def _evaluated(work: ss.Workload) -> None:
    work.model.eval()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [(_frozen, "is frozen now"), (_floats, "float64 tensor 'first.weight'"), (_evaluated, "captured in train mode")],
)
def test_a_model_that_changed_since_capture_is_found(change: Callable[[ss.Workload], None], wanted: str) -> None:
    def act(rank: int, transport: ThreadTransport) -> None:
        work = CASES["mlp"].workload()
        if rank == 1:
            change(work)
        parallel_on("mlp", rank, transport, work=work)

    for message in messages(2, act):
        assert message.startswith("rank 1: ")
        assert wanted in message


class Partly(nn.Module):
    """Reads part of a parameter, and has parameters and buffers that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(9, 4))
        self.linear, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)
        self.register_buffer("noted", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x + self.position[: x.shape[1]])
        return y


def test_state_that_no_op_reads_is_kept_and_loaded() -> None:
    torch.manual_seed(0)
    works = [ss.Workload(Partly(), (torch.randn(4, 5, 4),), loss=lambda y: y.sum()) for _ in range(2)]
    works[1].model.load_state_dict(works[0].model.state_dict())
    graph, topology = ss.capture(works[0]), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.random(graph, topology, seed=3)
    before = {name: tensor.clone() for name, tensor in works[0].model.state_dict().items()}

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        state = parallel.state_dict()
        assert all(torch.equal(state[name], before[name]) for name in before)
        parallel.load_state_dict({name: tensor + 7 for name, tensor in before.items()})
        state = parallel.state_dict()
        assert all(torch.equal(state[name], before[name] + 7) for name in before)

    ss.run_threads(2, act, strict=True)


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class OwnLoss(nn.Module):
    """Takes its targets by keyword and returns its own loss, beside other things."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: float, labels: torch.Tensor) -> Output:
        logits = self.linear(x) * scale
        return Output(nn.functional.cross_entropy(logits, labels), logits)


def test_keyword_tensors_are_part_of_the_batch() -> None:
    torch.manual_seed(0)
    kwargs = {"scale": 2.0, "labels": torch.randint(0, 3, (6,))}
    works = [ss.Workload(OwnLoss(), (torch.randn(6, 4),), kwargs=kwargs) for _ in range(2)]
    works[1].model.load_state_dict(works[0].model.state_dict())
    graph, topology = ss.capture(works[0]), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.random(graph, topology, seed=1)
    batch = (torch.randn(6, 4), torch.randint(0, 3, (6,)))  # other labels than at capture
    wanted = works[0].compute_loss(*batch).detach()

    def act(rank: int, transport: ThreadTransport) -> torch.Tensor:
        return ss.parallelize(works[rank], graph, topology, strategy, transport=transport).step(*batch)

    for loss in ss.run_threads(2, act, strict=True):
        assert torch.allclose(loss, wanted, rtol=1e-5)


class Normed(nn.Module):
    """Batch norm over the whole batch, or over some parts of it one by one: what local statistics mean. The first
    part's go into the buffers. A slice behind it takes nothing out of the statistics."""

    def __init__(self, parts: int = 1, sliced: bool = False) -> None:
        super().__init__()
        self.parts, self.sliced = parts, sliced
        self.first, self.norm, self.last = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm, F = self.norm, nn.functional
        first, *rest = self._slices(self.first(x))
        others = [F.batch_norm(part, None, None, norm.weight, norm.bias, True, 0.1, norm.eps) for part in rest]
        normed = torch.cat([norm(first), *others]) if others else norm(first)
        y: torch.Tensor = self.last(torch.relu(normed[2:] if self.sliced else normed))
        return y

    def _slices(self, x: torch.Tensor) -> list[torch.Tensor]:
        n = self.parts
        return [x] if n == 1 else [x[i * len(x) // n : (i + 1) * len(x) // n] for i in range(n)]


@pytest.mark.parametrize(
    ("first", "parts", "sliced"),
    [
        ({"sample": 3}, 3, False),
        ({"in": 2}, 1, False),
        ({"channel": 3}, 1, False),
        ({"channel": 3}, 1, True),
        ({}, 1, True),
    ],
)
def test_local_batch_norm_equals_norms_of_the_parts(first: dict[str, int], parts: int, sliced: bool) -> None:
    batch = (torch.randn(7, 4, dtype=torch.float64), torch.randn(5 if sliced else 7, 3, dtype=torch.float64))
    topology = ss.Topology.parse("cpu:1x3")
    torch.manual_seed(0)
    plain = Normed(parts, sliced).double()
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    loss = nn.functional.mse_loss(plain(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    works = [
        ss.Workload(Normed(sliced=sliced).double(), batch[:1], loss=nn.functional.mse_loss, targets=batch[1:])
        for _ in range(3)
    ]
    for work in works:
        work.model.load_state_dict(state)
    graph = ss.capture(works[0], batch_norm="local", batch_dim=[0, 0])
    data = ss.baselines.data_parallel(graph, topology)
    strategy = data.replace({"first": ss.Configuration(first, tuple(range(prod(first.values()))))})

    def act(rank: int, transport: ThreadTransport) -> Record:
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        return Record([parallel.step(*batch)], [parallel.gradients()], parallel.state_dict())

    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    wanted = Record([loss.detach()], [gradients], plain.state_dict())
    for record in ss.run_threads(3, act, strict=True):
        assert_same(record, wanted)


@pytest.mark.parametrize("bucket_bytes", [64, 10**9])
def test_buckets_train_like_one_device(bucket_bytes: int) -> None:
    topology = ss.Topology.parse("cpu:1x3")
    strategy = ss.baselines.data_parallel(captured("mlp"), topology)
    batch = CASES["mlp"].batches(1)[0]
    wanted = reference("mlp").gradients[0]

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = parallel_on(
            "mlp", rank, transport, strategy=strategy, training=ss.Training(bucket_bytes=bucket_bytes)
        )
        parallel.step(*batch)
        found = parallel.gradients()
        assert all(torch.allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12) for name in wanted)

    ss.run_threads(3, act, strict=True)


def test_receives_may_be_posted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.messages.AHEAD", 1)
    strategy = ss.baselines.random(captured("lstm"), ss.Topology.parse("cpu:1x4"), seed=3)
    for record in train("lstm", strategy):
        assert_same(record, reference("lstm"))


def test_parts_that_share_a_shard_read_windows_of_it() -> None:
    """And get gradients of the windows' sizes, not of the shard's."""
    topology = ss.Topology.parse("cpu:1x2")
    quarters = ss.Configuration({"channel": 4}, (0, 0, 1, 1))
    strategy = ss.baselines.data_parallel(captured("mlp"), topology).replace({"first": quarters})

    def act(rank: int, transport: ThreadTransport) -> list[tuple[int, ...]]:
        parallel = parallel_on("mlp", rank, transport, strategy=strategy)
        state = parallel._executor.weaver.windows.state()
        return [tuple(leaf.shape) for key, leaf in state.items() if key.window]

    of_quarters = ss.run_threads(2, act, strict=True)
    assert of_quarters == [[(2, 7), (3, 7), (2,), (3,)], [(3, 7), (3, 7), (3,), (3,)]]


def test_the_number_of_ranks_must_fit() -> None:
    def act(rank: int, transport: ThreadTransport) -> None:
        parallel_on("mlp", rank, transport, topology=ss.Topology.parse("cpu:1x3"))

    assert "2 ranks for 3 devices" in messages(2, act)[0]


def test_without_torch_distributed_it_says_how_to_start() -> None:
    topology = ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(captured("mlp"), topology)
    with pytest.raises(ss.SoapstoneError, match="start with torchrun"):
        ss.parallelize(CASES["mlp"].workload(), captured("mlp"), topology, strategy)


def test_a_failure_inside_a_step_stops_every_rank() -> None:
    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = parallel_on("mlp", rank, transport)
        if rank == 1:
            transport.round = _broken  # type: ignore[method-assign, assignment]
            transport.all_reduce = _broken  # type: ignore[method-assign, assignment]
        parallel.step(*CASES["mlp"].batches(1)[0])

    with pytest.raises(RuntimeError, match="out of memory"):
        ss.run_threads(2, act, strict=True)


def test_the_error_of_the_rank_that_failed_first_is_raised() -> None:
    told = threading.Event()

    def act(rank: int, transport: ThreadTransport) -> None:
        try:
            transport.exchange(None) if rank == 0 else _broken()
        except RuntimeError:
            transport.fail(RuntimeError("out of memory"))
            assert told.wait(HANG)  # rank 0's error comes first, though it is only the echo
            raise
        finally:
            told.set() if rank == 0 else None

    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        ss.run_threads(2, act)


def _broken(*_: object) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("name", CASES)
def test_state_goes_round(name: str) -> None:
    """load_state_dict and state_dict are inverse, shards only hold what their rank reads, names are the model's."""
    topology = ss.Topology.parse("cpu:1x3")
    strategy = ss.baselines.random(captured(name), topology, seed=2)
    torch.manual_seed(1)
    other = CASES[name].model().double().state_dict()

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = parallel_on(name, rank, transport, strategy=strategy)
        parallel.load_state_dict(other)
        state = parallel.state_dict()
        assert state.keys() == other.keys()
        assert all(torch.equal(state[key], other[key]) for key in other)
        assert {key for key, _ in parallel.named_parameters()} <= other.keys()

    ss.run_threads(3, act, strict=True)


def test_a_rank_that_fails_before_a_step_tells_the_others() -> None:
    batch = CASES["cnn"].batches(1)[0]

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = parallel_on("cnn", rank, transport)
        parallel.step(*batch)
        if rank == 1:
            parallel._executor.given = _broken  # type: ignore[method-assign, assignment]
        parallel.step(*batch)

    assert messages(3, act) == ["rank 1: out of memory"] * 3


def test_a_state_that_does_not_fit_is_refused() -> None:
    state = dict(CASES["mlp"].workload().model.state_dict())

    def missing(rank: int, transport: ThreadTransport) -> None:
        parallel_on("mlp", rank, transport).load_state_dict({})

    def misshapen(rank: int, transport: ThreadTransport) -> None:
        parallel_on("mlp", rank, transport).load_state_dict(state | {"last.bias": torch.zeros(3)})

    assert "the state has no tensor 'first.weight'" in messages(2, missing)[1]
    assert "'last.bias' has shape [3] in the state, but [5]" in messages(2, misshapen)[0]


def test_counted_dropout_is_the_same_on_any_strategy() -> None:
    losses = []
    for devices, seed in [(1, 0), (2, 1), (4, 2), (8, 3)]:
        topology = ss.Topology.parse(f"cpu:1x{devices}")
        strategy = ss.baselines.random(captured("lstm"), topology, seed=seed)
        batches = CASES["lstm"].batches(3)

        losses.append(_counted_losses(strategy, batches))
    for other in losses[1:]:
        assert torch.allclose(other, losses[0], rtol=1e-12, atol=0)
    assert len({round(float(x), 9) for x in losses[0]}) == 3


def _counted_losses(strategy: ss.Strategy, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    works = [CASES["lstm"].workload() for _ in strategy.topology.devices]

    def act(rank: int, transport: ThreadTransport) -> list[torch.Tensor]:
        parallel = parallel_on("lstm", rank, transport, strategy=strategy, work=works[rank])
        return [parallel.step(*batch) for batch in batches]

    torch.manual_seed(3)
    return torch.stack(ss.run_threads(strategy.topology.num_devices, act, strict=True)[0])


def test_counted_dropout_keeps_the_right_share() -> None:
    place = SimpleNamespace(
        args={"draw": 0, "p": 0.3},
        step=SimpleNamespace(dims=[SimpleNamespace(size=200), SimpleNamespace(size=500)], writes=[[[0], [1]]]),
        dims=[(0, 200), (0, 500)],
        shape=lambda: [200, 500],
    )
    draws = CounterDraws(1, torch.device("cpu"))
    masks = []
    for _ in range(3):
        draws.begin(1)
        masks.append(draws.keep(place))  # type: ignore[arg-type]
    for mask in masks:
        assert abs(mask.double().mean().item() - 0.7) < 0.01
    assert abs((masks[0] & masks[1]).double().mean().item() - 0.49) < 0.01
    rows = masks[0].double().mean(1)
    assert abs(rows.std().item() - (0.21 / 500) ** 0.5) < 0.005


def test_an_idle_rank_can_still_make_an_optimizer() -> None:
    topology = ss.Topology.parse("cpu:1x2")
    graph = captured("mlp")
    strategy = ss.Strategy(graph, topology, {op.name: ss.Configuration({}, (0,)) for op in graph.ops})

    def act(rank: int, transport: ThreadTransport) -> torch.Tensor:
        parallel = parallel_on("mlp", rank, transport, strategy=strategy)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        loss = parallel.step(*CASES["mlp"].batches(1)[0])
        optimizer.step()
        assert len(list(parallel.named_parameters())) == (0 if rank else 5)
        return loss

    first, second = ss.run_threads(2, act, strict=True)
    assert torch.equal(first, second)
