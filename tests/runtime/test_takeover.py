"""What becomes of the user's own model: whole parameters train in place, the others are freed."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport, Transport
from soapstone.runtime.transports import alone
from tests.support.models import ALL, CASES, captured
from tests.support.training import SEED, optimizer_of, train_plain


def made(work: ss.Workload, name: str, baseline: str, transport: Transport, in_place: bool = True) -> Parallel:
    graph, topology = captured(name), ss.Topology.parse(f"cpu:1x{transport.size}")
    strategy = ss.baselines.baseline(baseline, graph, topology)
    return ss.parallelize(work, graph, topology, strategy, transport=transport, dropout="replay", in_place=in_place)


@pytest.mark.parametrize("name", CASES)
def test_whole_parameters_and_buffers_are_the_models_own(name: str) -> None:
    batches = CASES[name].batches(2)
    wanted = train_plain(CASES[name].workload(), batches)
    works = [CASES[name].workload() for _ in range(2)]
    torch.manual_seed(SEED)

    def run(rank: int, transport: ThreadTransport) -> None:
        model = works[rank].model
        optimizer = optimizer_of(model.parameters())  # as with DistributedDataParallel
        before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        parallel = made(works[rank], name, "data", transport)
        assert {name: p.data_ptr() for name, p in parallel.named_parameters()}.items() <= before.items()
        for batch in batches:
            parallel.step(*batch)
            optimizer.step()

    ss.run_threads(2, run)
    for work in works:
        for name, tensor in work.model.state_dict().items():
            torch.testing.assert_close(tensor, wanted.state[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("baseline", ["fsdp", "model"])
def test_parameters_that_are_cut_or_elsewhere_are_freed_until_a_state_is_loaded(baseline: str) -> None:
    batch = CASES["mlp"].batches(1)[0]
    works = [CASES["mlp"].workload() for _ in range(2)]
    late = [torch.optim.SGD(work.model.parameters(), lr=0.1) for work in works]

    def run(rank: int, transport: ThreadTransport) -> None:
        model = works[rank].model
        memory = [weakref.ref(parameter.untyped_storage()) for parameter in model.parameters()]
        parallel = made(works[rank], "mlp", baseline, transport)
        optimizer = optimizer_of(parallel.parameters())
        gc.collect()
        gone = [parameter.is_meta for parameter in model.parameters()]
        assert [each() is None for each in memory] == gone
        assert any(gone)
        parallel.step(*batch)
        optimizer.step()
        with pytest.raises(ss.SoapstoneError, match="plain model's parameters, which no step trains"):
            late[rank].step()
        with pytest.raises(ss.SoapstoneError, match=r"parallel.state_dict\(\), called on every rank, has them whole"):
            model.state_dict()
        with pytest.raises(ss.SoapstoneError, match="cut this model's parameters between ranks"):
            made(works[rank], "mlp", baseline, transport)
        parallel.step(*(x[:3] for x in batch))  # a new capture
        state = parallel.state_dict()
        output = parallel.evaluate(batch[0])
        model.load_state_dict(state)
        assert not any(parameter.is_meta for parameter in model.parameters())
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
        torch.testing.assert_close(model.eval()(batch[0]), output, rtol=1e-9, atol=1e-12)
        model.train()
        made(works[rank], "mlp", baseline, transport).step(*batch)

    ss.run_threads(2, run)


def freed(act: Callable[[Parallel, nn.Module], None]) -> None:
    """Under `fsdp`, after a step."""
    works = [CASES["mlp"].workload() for _ in range(2)]

    def run(rank: int, transport: ThreadTransport) -> None:
        parallel = made(works[rank], "mlp", "fsdp", transport)
        parallel.step(*works[rank].batch)
        act(parallel, works[rank].model)

    ss.run_threads(2, run)


CUT = "this model's parameters are cut between ranks"


def test_a_state_that_does_not_load_leaves_no_unset_memory() -> None:
    def act(parallel: Parallel, model: nn.Module) -> None:
        state = parallel.state_dict()
        missing = state.pop("last.weight")
        for given, strict in ((state, True), ({}, False)):
            with contextlib.suppress(RuntimeError):
                model.load_state_dict(given, strict)
            with pytest.raises(ss.SoapstoneError, match=CUT):
                model.state_dict()
        model.load_state_dict({"last.weight": missing}, strict=False)
        assert not any(parameter.is_meta for parameter in model.parameters())
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())

    freed(act)


def test_copies_and_parts_of_a_model_are_guarded_as_it_is() -> None:
    def act(parallel: Parallel, model: nn.Module) -> None:
        twin, state = copy.deepcopy(model), parallel.state_dict()
        for each in (twin, model.get_submodule("last"), twin.get_submodule("last")):
            with pytest.raises(ss.SoapstoneError, match=CUT):
                each.state_dict()
        twin.load_state_dict(state)
        assert all(torch.equal(state[name], tensor) for name, tensor in twin.state_dict().items())
        with pytest.raises(ss.SoapstoneError, match=CUT):
            model.state_dict()
        model.load_state_dict(state)
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())

    freed(act)


def test_a_model_without_its_parameters_is_not_pickled() -> None:
    def act(parallel: Parallel, model: nn.Module) -> None:
        for each in (model, copy.deepcopy(model)):
            with pytest.raises(ss.SoapstoneError, match=CUT):
                pickle.dumps(each)
            each.load_state_dict(parallel.state_dict())
            assert torch.equal(pickle.loads(pickle.dumps(each)).last.weight, parallel.state_dict()["last.weight"])

    freed(act)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))  # type: ignore[no-any-return]


def test_statistics_that_another_rank_updates_are_missed() -> None:
    works = [ss.Workload(Normed(), (torch.randn(8, 4).double(),), loss=torch.sum) for _ in range(2)]
    graph, topology = ss.capture(works[0]), ss.Topology.parse("cpu:1x2")
    (norm,) = [op.name for op in graph.ops if op.updates]
    strategy = ss.baselines.data_parallel(graph, topology).replace({norm: ss.Configuration({}, (0,))})

    def run(rank: int, transport: ThreadTransport) -> None:
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        parallel.step(*works[rank].batch)
        state = parallel.state_dict()
        if rank == 1:
            with pytest.raises(ss.SoapstoneError, match=CUT):
                works[rank].model.state_dict()
            works[rank].model.load_state_dict(state)
        found = works[rank].model.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())

    ss.run_threads(2, run)


def test_hooks_of_parameters_are_refused() -> None:
    work = CASES["mlp"].workload()
    next(work.model.parameters()).register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))  # type: ignore[no-untyped-call]
    with pytest.raises(ss.SoapstoneError, match=r"'first.weight' has a hook, which would see this rank's part"):
        made(work, "mlp", "data", alone())


def test_a_model_that_stays_as_it_is() -> None:
    work, batch = CASES["mlp"].workload(), CASES["mlp"].batches(1)[0]
    state = {name: tensor.clone() for name, tensor in work.model.state_dict().items()}

    def run(rank: int, transport: ThreadTransport) -> None:
        parallel = made(work, "mlp", "data", transport, in_place=False)
        parallel.step(*batch)
        optimizer_of(parallel.parameters()).step()

    ss.run_threads(2, run)
    assert all(torch.equal(state[name], tensor) for name, tensor in work.model.state_dict().items())
    assert all(parameter.grad is None for parameter in work.model.parameters())


def test_a_second_parallel_of_a_model_gets_copies() -> None:
    work, batch = CASES["mlp"].workload(), CASES["mlp"].batches(1)[0]

    def run(rank: int, transport: ThreadTransport) -> None:
        first, second = (made(work, "mlp", "data", transport) for _ in range(2))
        own = {id(parameter) for parameter in work.model.parameters()}
        assert not own & {id(parameter) for parameter in second.parameters()}
        first.step(*batch)
        second.step(*batch)

    ss.run_threads(1, run)
    assert all(parameter.grad is not None for parameter in work.model.parameters())


class Table(nn.Module):
    """Forward reads the first rows of the table; no rank reads the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Parameter(torch.ones(8, 4)), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.table[: x.shape[1]])  # type: ignore[no-any-return]


def test_what_no_rank_reads_stays_with_the_model() -> None:
    works = [ss.Workload(Table(), (torch.randn(4, 6, 4),), loss=torch.mean) for _ in range(2)]
    graph, topology = ss.capture(works[0]), ss.Topology.parse("cpu:1x2")

    def run(rank: int, transport: ThreadTransport) -> None:
        strategy = ss.baselines.baseline("fsdp", graph, topology)
        parallel = ss.parallelize(works[rank], graph, topology, strategy, transport=transport)
        assert torch.equal(parallel.state_dict()["table"], torch.ones(8, 4))

    ss.run_threads(2, run)


def test_a_layout_in_memory_does_not_matter() -> None:
    work, batch = ALL["cnn"].workload(), CASES["cnn"].batches(1)[0]
    work.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.manual_seed(SEED)
    loss = made(work, "cnn", "data", alone()).step(*batch)
    torch.manual_seed(SEED)
    torch.testing.assert_close(loss.as_subclass(torch.Tensor), ALL["cnn"].workload().compute_loss(*batch).detach())
