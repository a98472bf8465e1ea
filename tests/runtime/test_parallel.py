"""What people need around a step: accumulation, clipping, evaluation, slices of a batch, ranks, first weights."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TypeVar
from weakref import ref

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.parts import Place
from soapstone.parts.place import KERNELS
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.locating import Difference, first_difference
from soapstone.runtime.plan import Plan, Run
from tests.support.models import ALL, CASES, captured
from tests.support.seeds import seeds
from tests.support.sharding import sharded
from tests.support.training import optimizer_of, train_plain, train_threads

T = TypeVar("T")


def on_threads(
    name: str, seed: int, ranks: int, act: Callable[[Parallel], T], work: Callable[[], ss.Workload] | None = None
) -> list[T]:
    topology = ss.Topology.parse(f"cpu:1x{ranks}")
    strategy = sharded(ss.baselines.random(captured(name), topology, seed=seed), seed)
    works = [(work or ALL[name].workload)() for _ in range(ranks)]

    def run(rank: int, transport: ThreadTransport) -> T:
        return act(ss.parallelize(works[rank], captured(name), topology, strategy, transport=transport))

    torch.manual_seed(3)
    return ss.run_threads(ranks, run, strict=True)


def gradients(work: ss.Workload, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    for batch in batches:
        work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in work.model.named_parameters() if p.grad is not None}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("seed", range(4))
def test_gradients_accumulate_until_a_step_that_syncs(seed: int) -> None:
    batches = ALL["mlp"].batches(3)

    def act(parallel: Parallel) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        for batch in batches[:-1]:
            parallel.step(*batch, sync=False)
        parallel.step(*batches[-1])
        summed = parallel.gradients()
        parallel.step(*batches[0])  # which begins anew
        return summed, parallel.gradients()

    for summed, anew in on_threads("mlp", seed, 3, act):
        assert_close(summed, gradients(ALL["mlp"].workload(), batches))
        assert_close(anew, gradients(ALL["mlp"].workload(), batches[:1]))


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.5, float("inf")])
@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_gradients_are_clipped_as_torch_does_it(norm_type: float, max_norm: float) -> None:
    batch = ALL["mlp"].batches(1)
    work = ALL["mlp"].workload()
    gradients(work, batch)
    wanted = nn.utils.clip_grad_norm_(work.model.parameters(), max_norm, norm_type)

    def act(parallel: Parallel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parallel.step(*batch[0])
        return parallel.clip_grad_norm_(max_norm, norm_type), parallel.gradients()

    for norm, clipped in on_threads("mlp", 1, 3, act):
        assert torch.allclose(norm, wanted, rtol=1e-9)
        assert_close(clipped, {n: p.grad for n, p in work.model.named_parameters() if p.grad is not None})


# Under seed 0 on 2 ranks one rank trains the outer columns of the LSTM's embedding, and evaluates with all of them.
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("seed", "ranks"), [(0, 1), (0, 2), (2, 3)])
def test_evaluation_equals_the_model_in_eval_mode(name: str, seed: int, ranks: int) -> None:
    batches = ALL[name].batches(2)
    inputs = batches[1][:1]
    shapes = [inputs, [x[:3] for x in inputs]]  # of any batch size

    def act(parallel: Parallel) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        before = [parallel.evaluate(*inputs) for inputs in shapes]
        optimizer = optimizer_of(parallel.parameters())
        parallel.step(*batches[0])
        optimizer.step()
        return [*before, parallel.evaluate(*inputs)], parallel.state_dict()

    work = ALL[name].workload()
    work.model.eval()
    with torch.no_grad():
        wanted = [work.model(*inputs) for inputs in shapes]
    for outputs, state in on_threads(name, seed, ranks, act):
        other = ALL[name].workload().model.eval()
        other.load_state_dict(state)
        for found, output in zip(outputs, [*wanted, other(*inputs)], strict=True):
            assert torch.allclose(found, output, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(3, 6))
def test_a_rank_may_pass_just_what_it_reads(name: str, seed: int) -> None:
    batch = ALL[name].batches(1)[0]

    def act(parallel: Parallel) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        local = parallel.step(*(x[s].clone() for x, s in zip(batch, parallel.slices, strict=True)))
        found = parallel.gradients()
        parallel._executor.draws.step = 0  # type: ignore[union-attr]  # the same masks again
        whole = parallel.step(*batch)
        assert_close(parallel.gradients(), found)
        return whole, found, local

    for whole, _, local in on_threads(name, seed, 2 + seed % 3, act):
        assert torch.equal(whole, local)


def test_data_parallel_ranks_read_their_own_samples() -> None:
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> tuple[slice, ...]:
        return ss.parallelize(ALL["mlp"].workload(), graph, topology, strategy, transport=transport).slices[0]

    size = ALL["mlp"].batches(1)[0][0].shape[0]
    first, second = ss.run_threads(2, run)
    assert (first[0], second[0]) == (slice(0, size // 2), slice(size // 2, size))


def test_ranks_can_be_mapped_to_devices_and_idle_ones_hear_the_loss() -> None:
    graph, topology = captured("cnn"), ss.Topology.parse("cpu:1x2")
    batches = ALL["cnn"].batches(2)
    wanted = train_plain(ALL["cnn"].workload(), batches)
    strategy = ss.baselines.random(graph, topology, seed=2)
    works = [ALL["cnn"].workload() for _ in range(4)]

    def run(rank: int, transport: ThreadTransport) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], int]:
        parallel = ss.parallelize(
            works[rank], graph, topology, strategy, dropout="replay", ranks=[3, 1], transport=transport
        )
        optimizer = optimizer_of(parallel.parameters())
        losses = []
        for batch in batches:
            losses.append(parallel.step(*batch))
            optimizer.step()
        return losses, parallel.state_dict(), len(list(parallel.named_parameters()))

    torch.manual_seed(5)
    found = ss.run_threads(4, run, strict=True)
    for losses, state, _ in found:
        for a, b in zip(losses, wanted.losses, strict=True):
            assert torch.allclose(a, b, rtol=1e-9)
        for name, tensor in wanted.state.items():
            assert torch.allclose(state[name], tensor, rtol=1e-7, atol=1e-10), name
    assert [count > 0 for _, _, count in found] == [False, True, False, True]


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 2], [0, "1"]])
def test_a_mapping_that_does_not_fit_is_refused(ranks: list[int]) -> None:
    graph, topology = captured("mlp"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> None:
        with pytest.raises(ss.SoapstoneError, match="does not name one of 2 ranks"):
            ss.parallelize(ALL["mlp"].workload(), graph, topology, strategy, ranks=ranks, transport=transport)

    ss.run_threads(2, run)


def _on_meta(name: str) -> ss.Workload:
    work = ALL[name].workload()
    work.model.to("meta")
    return work


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_model_on_the_meta_device_gets_its_weights_shard_by_shard(name: str) -> None:
    def act(parallel: Parallel) -> dict[str, torch.Tensor]:
        parallel.step(*ALL[name].batches(1)[0])
        return parallel.state_dict()

    graph = captured(name)
    assert graph.fingerprint == ss.capture(_on_meta(name)).fingerprint
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        wanted = ALL[name].model().state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for state in on_threads(name, 1, 3, act, lambda: _on_meta(name)):
        for parameter in (n for n, _ in ALL[name].model().named_parameters()):
            assert state[parameter].device.type == "cpu"
            assert torch.equal(state[parameter], wanted[parameter]), parameter


class Unready(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_meta_module_without_first_values_is_named() -> None:
    work = ss.Workload(nn.Sequential(Unready()).to("meta"), (torch.ones(2, 4),), loss=lambda y: y.sum())
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> None:
        with pytest.raises(ss.SoapstoneError, match="module '0' is on the meta device and has no reset_parameters"):
            ss.parallelize(work, graph, topology, strategy, transport=transport)

    ss.run_threads(1, run)


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adam, foreach": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, foreach=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_elementwise_optimizers_train_like_one_device(
    optimizer: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.training.optimizer_of", OPTIMIZERS[optimizer])
    batches = ALL["gpt"].batches(3)
    wanted = train_plain(ALL["gpt"].workload(), batches)
    strategy = ss.baselines.random(captured("gpt"), ss.Topology.parse(f"cpu:1x{2 + seed}"), seed=seed)
    for record in train_threads(ALL["gpt"].workload, captured("gpt"), strategy, batches):
        # A gradient that is truly zero is noise, which these divide by itself: so only gradients are compared.
        for found, gradients in zip(record.gradients, wanted.gradients, strict=True):
            largest = max(tensor.abs().max() for tensor in gradients.values())
            for name, tensor in gradients.items():
                assert torch.allclose(found[name], tensor, rtol=1e-6, atol=1e-6 * float(largest)), name


def test_autocast_trains_like_one_device() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = torch.randn(8, 8), torch.randint(0, 4, (8,))

    def make() -> ss.Workload:
        own = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        own.load_state_dict(state)
        return ss.Workload(own, batch[:1], loss=nn.functional.cross_entropy, targets=batch[1:])

    with torch.autocast("cpu", torch.bfloat16):
        graph = ss.capture(make())
        loss = make().compute_loss(*batch)
    assert any(tensor.dtype == "bfloat16" for tensor in graph.tensors)
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(graph, topology)
    works = [make(), make()]

    def run(rank: int, transport: ThreadTransport) -> torch.Tensor:
        return ss.parallelize(works[rank], graph, topology, strategy, transport=transport).step(*batch)

    for found in ss.run_threads(2, run, strict=True):
        assert torch.allclose(found, loss, rtol=1e-5)


def test_memory_does_not_grow_over_a_thousand_steps() -> None:
    batch = ALL["mlp"].batches(1)[0]

    def act(parallel: Parallel) -> tuple[int, int]:
        optimizer = optimizer_of(parallel.parameters())
        counts = []
        for steps in (20, 1000):
            for _ in range(steps):
                parallel.step(*batch)
                optimizer.step()
            gc.collect()
            counts.append(sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects()))
        return counts[0], counts[1]

    (before, after), *_ = on_threads("mlp", 1, 1, act)
    assert after <= before


def test_a_rank_that_nobody_holds_any_more_is_freed() -> None:
    batch = ALL["cnn"].batches(1)[0]

    def act(parallel: Parallel) -> ref[object]:
        parallel.step(*batch)
        return ref(parallel._executor)

    left = on_threads("cnn", 1, 2, act)
    gc.collect()
    assert [executor() for executor in left] == [None, None]


def first_difference_of(strategy: ss.Strategy) -> list[Difference | None]:
    works = [ALL["cnn"].workload() for _ in strategy.topology.devices]
    batch, place = ALL["cnn"].batches(1)[0], torch.device("cpu")

    def run(rank: int, transport: ThreadTransport) -> Difference | None:
        return first_difference(works[rank], captured("cnn"), strategy, batch, transport, place, 1e-9)

    return ss.run_threads(strategy.topology.num_devices, run, strict=True)


def test_the_first_op_that_differs_from_one_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = ss.baselines.data_parallel(captured("cnn"), ss.Topology.parse("cpu:1x2"))
    assert first_difference_of(strategy) == [None, None]
    right = KERNELS["conv2d"]

    def wrong(place: Place, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = right(place, inputs)
        is_stem = inputs["weight"].shape[1] == 3 and place.extent("group") == 1
        return y * 1.01 if is_stem and not place.all_of("sample") else y

    monkeypatch.setitem(KERNELS, "conv2d", wrong)
    found = first_difference_of(strategy)
    assert [difference.what for difference in found if difference is not None] == ["stem", "stem"]


def losses_of(loss: Callable[..., torch.Tensor], targets: tuple[torch.Tensor, ...], seed: int, steps: int = 3) -> None:
    """Train a small model with some loss, data parallel and at random, and compare gradients with plain PyTorch."""
    torch.manual_seed(0)
    inputs = torch.randn(6, 4, dtype=torch.float64)

    def make() -> ss.Workload:
        torch.manual_seed(1)
        return ss.Workload(nn.Linear(4, 6).double(), (inputs,), loss=loss, targets=targets)

    graph, topology = ss.capture(make()), ss.Topology.parse("cpu:1x2")
    choose = ss.baselines.random(graph, topology, seed=seed) if seed else ss.baselines.data_parallel(graph, topology)
    works = [make() for _ in range(2)]

    def run(rank: int, transport: ThreadTransport) -> list[dict[str, torch.Tensor]]:
        parallel = ss.parallelize(works[rank], graph, topology, choose, transport=transport)
        found = []
        for step in range(steps):
            parallel.step(inputs + step, *targets)
            found.append(parallel.gradients())
        return found

    for found in ss.run_threads(2, run, strict=True):
        for step, gradient in enumerate(found):
            work = make()
            work.compute_loss(inputs + step, *targets).backward()  # type: ignore[no-untyped-call]
            assert_close(gradient, {n: p.grad for n, p in work.model.named_parameters() if p.grad is not None})


F = nn.functional
CLASSES = torch.tensor([0, 2, 5, 2, 1, 3])
TARGETS = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
LOSSES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "another term": (lambda o, t: F.cross_entropy(o, t, ignore_index=2, reduction="sum") + o.pow(2).mean(), (CLASSES,)),
    "two losses": (lambda o, t: F.mse_loss(o, t) + 0.1 * o.abs().mean(), (TARGETS,)),
    "both ways": (lambda o, t: (F.cross_entropy(o, t) + F.cross_entropy(o.T, t)) / 2, (CLASSES,)),
    "scaled": (lambda o, t: F.cross_entropy(o, t) * 3 - 1, (CLASSES,)),
    "weighted": (lambda o, t: F.cross_entropy(o, t, weight=torch.arange(6.0).double(), ignore_index=2), (CLASSES,)),
    "own targets": (lambda o, t: F.cross_entropy(o, o.detach().argmax(1)) + 0 * t.sum(), (TARGETS,)),
    "targets made by ops": (lambda o, t: F.cross_entropy(o, (o.detach() + t).argmax(1), ignore_index=1), (TARGETS,)),
    "masked": (
        lambda o, t, m: (F.mse_loss(o, t, reduction="none") * m).sum() / m.sum(),
        (TARGETS, TARGETS > 0),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_losses_of_all_sorts_have_one_gradient(name: str, seed: int) -> None:
    losses_of(*LOSSES[name], seed)


@pytest.mark.parametrize(("name", "waits"), [("weighted", False), ("targets made by ops", True), ("scaled", True)])
def test_backward_waits_for_no_loss_whose_weight_is_known(name: str, waits: bool) -> None:
    loss, targets = LOSSES[name]
    work = ss.Workload(nn.Linear(4, 6).double(), (torch.zeros(6, 4).double(),), loss=loss, targets=targets)
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x2")
    simulation = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    plan = Plan(simulation, simulation.order, 2)
    runs = [event for event in plan.program(0) if isinstance(event, Run)]
    finishes = [any(task.finish for task in plan.segments[run.segment].tasks) for run in runs]
    assert finishes[-1] != waits
    assert any(run.backward for run, finish in zip(runs, finishes) if finish) == waits


@pytest.mark.parametrize("degrees", [{}, {"class": 3}, {"class": 5}])
@pytest.mark.parametrize("label", [2, 5])
def test_one_sample_with_folded_classes_trains_like_one_device(degrees: dict[str, int], label: int) -> None:
    """The classes come folded from two axes, and another term reads them unfolded."""

    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 12).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x)).view(-1, 3, 4)

    x, target = torch.ones(1, 4).double(), torch.tensor([label])
    work = ss.Workload(
        Grid(), (x,), targets=(target,), loss=lambda y, t: F.cross_entropy(y.flatten(1), t) + y.pow(2).sum()
    )
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x1")
    devices = (0,) * max([1, *degrees.values()])
    strategy = ss.baselines.data_parallel(graph, topology).replace(
        {"cross_entropy": ss.Configuration(degrees, devices)}
    )

    def run(rank: int, transport: ThreadTransport) -> torch.Tensor:
        return ss.parallelize(work, graph, topology, strategy, transport=transport).step(x, target)

    assert torch.allclose(ss.run_threads(1, run)[0], work.compute_loss(x, target))


def test_one_tensor_may_be_input_and_target() -> None:
    """At capture and at the first step; later they differ."""
    torch.manual_seed(0)
    ids, other = torch.randint(0, 7, (4, 3)), torch.randint(0, 7, (4, 3))
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)).double()

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.view(-1, 7), labels.view(-1))

    work = ss.Workload(model, (ids,), loss=loss, targets=(ids,))
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> list[torch.Tensor]:
        parallel = ss.parallelize(work, graph, topology, strategy, transport=transport)
        return [parallel.step(ids, ids), parallel.step(ids, other)]

    found = ss.run_threads(1, run)[0]
    assert torch.allclose(torch.stack(found), torch.stack([work.compute_loss(ids, y) for y in (ids, other)]))


def test_gradients_that_are_not_summed_yet_are_not_given_out() -> None:
    batch = ALL["mlp"].batches(1)[0]

    def act(parallel: Parallel) -> None:
        parallel.step(*batch, sync=False)
        for ask in (parallel.gradients, lambda: parallel.clip_grad_norm_(1.0)):
            with pytest.raises(ss.SoapstoneError, match="not summed yet"):
                ask()
        parallel.step(*batch)
        parallel.gradients()

    on_threads("mlp", 1, 2, act)


def test_a_step_trains_also_where_gradients_are_switched_off() -> None:
    batch = ALL["mlp"].batches(1)

    def act(parallel: Parallel) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            parallel.step(*batch[0])
        return parallel.gradients()

    for found in on_threads("mlp", 1, 2, act):
        assert_close(found, gradients(ALL["mlp"].workload(), batch))


def test_evaluation_sees_parameters_whose_data_was_replaced() -> None:
    inputs = ALL["mlp"].batches(1)[0][0]

    def act(parallel: Parallel) -> tuple[torch.Tensor, torch.Tensor]:
        before = parallel.evaluate(inputs)
        for parameter in parallel.parameters():
            parameter.data = parameter.data + 1
        return before, parallel.evaluate(inputs)

    for before, after in on_threads("mlp", 0, 2, act):
        assert not torch.allclose(before, after)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x) * self.scale
        return y


def test_a_state_without_the_buffers_that_are_not_persistent_is_loaded() -> None:
    work = ss.Workload(Buffered(), (torch.randn(4, 4),), loss=lambda y: y.sum())
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> None:
        parallel = ss.parallelize(work, graph, topology, strategy, transport=transport)
        parallel.load_state_dict(parallel.state_dict())

    ss.run_threads(1, run)


@pytest.mark.parametrize("dropout", ["counter", "replay"])
def test_a_refused_batch_leaves_no_trace(dropout: str) -> None:
    """Neither in dropout's masks nor in what is accumulated, on no rank."""
    graph, topology = captured("lstm"), ss.Topology.parse("cpu:1x3")
    strategy = ss.baselines.random(graph, topology, seed=4)
    good = ALL["lstm"].batches(3)
    works = [[ALL["lstm"].workload() for _ in range(3)] for _ in range(2)]

    def losses(refuse: bool) -> list[list[torch.Tensor]]:
        def run(rank: int, transport: ThreadTransport) -> list[torch.Tensor]:
            work = works[refuse][rank]
            parallel = ss.parallelize(work, graph, topology, strategy, dropout=dropout, transport=transport)
            found = [parallel.step(*good[0], sync=False)]
            if refuse:
                with pytest.raises(ss.SoapstoneError, match=r"but rank 1 passes .2, 3., .5, 3."):
                    parallel.step(*((good[1][0][:2], good[1][1]) if rank == 1 else good[1]))
            found.append(parallel.step(*good[1]))
            return [*found, *(gradient.sum() for gradient in parallel.gradients().values())]

        torch.manual_seed(9)
        return ss.run_threads(3, run, strict=True)

    for plain, refused in zip(losses(False), losses(True), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, refused, strict=True))
