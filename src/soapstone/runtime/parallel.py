"""The model that trains under a strategy: what a user calls on each rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from ..costs import Costs
from ..errors import RankError, SoapstoneError
from ..graph import OperatorGraph
from ..simulator import Simulation, simulate
from ..strategy import Strategy
from ..topology import Topology
from ..tracing import Workload
from .batch import BatchCheck
from .draws import CounterDraws, ReplayDraws
from .execute import Executor
from .plan import groups_of, make_program
from .processes import ProcessTransport
from .store import Store
from .transport import Transport

T = TypeVar("T")


class Parallel:
    """One rank of a model under a strategy. Made by `parallelize`."""

    def __init__(self, work: Workload, executor: Executor, store: Store, transport: Transport) -> None:
        self._work, self._executor, self._store, self._transport = work, executor, store, transport
        self._graph = executor.graph
        self._check = BatchCheck(executor.graph)
        self._first = True
        self._idle = nn.Parameter(torch.empty(0))

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Forward, backward and gradient sync. Every rank passes the whole batch, inputs then targets, and gets the
        same loss; gradients of the step before are dropped. Raises RankError on every rank where one rank's batch
        does not fit."""
        self._agree_on(batch)
        for _, parameter in self._store.parameters():
            parameter.grad = None
        try:
            loss = self._executor.step(batch)
            everyone = tuple(range(self._transport.size))
            return self._transport.all_reduce(-1, loss, everyone) if len(everyone) > 1 else loss
        except BaseException as error:
            self._transport.fail(str(error) or type(error).__name__)
            raise

    def _agree_on(self, batch: tuple[torch.Tensor, ...]) -> None:
        """Check the batch on every rank; the first one must also be the same on all of them."""
        _agree(self._transport, lambda: self._check(batch))
        if self._first:
            self._first = False
            sums = self._transport.exchange(_checksum(dict(enumerate(batch))))
            if (rank := next((r for r, found in enumerate(sums) if found != sums[0]), 0)) != 0:
                raise RankError(f"ranks 0 and {rank} pass different batches; every rank must pass the whole batch")

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's shards, for an elementwise torch optimizer; an empty parameter where it holds none."""
        shards = [parameter for _, parameter in self._store.parameters()]
        yield from shards or [self._idle]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shards by the model's own names."""
        yield from self._store.parameters()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients by name, on every rank; every rank must call this."""
        return self._store.assemble(self._transport.exchange(self._store.owned(gradients=True)), {})

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's state, on every rank; every rank must call this."""
        unread = _state(self._work.model)
        whole = self._store.assemble(self._transport.exchange(self._store.owned(gradients=False)), unread)
        whole |= {name: counter.clone() for name, counter in self._store.counters.items()}
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._work.model.state_dict().items():
            found = whole.get(self._graph.aliases.get(name, name))
            state[name] = tensor.detach().clone() if found is None else found
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take a whole state, such as `state_dict` gives; each rank keeps its own part of it. Raises RankError on
        every rank, before anything changes, where names or shapes are not the model's."""
        own = self._work.model.state_dict()
        _agree(self._transport, lambda: _check_state(own, state))
        kept = {self._graph.aliases.get(name, name): tensor for name, tensor in state.items()}
        self._work.model.load_state_dict(dict(state))  # for what no op reads
        self._store.load(kept)


def _check_state(own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in own.items():
        if not isinstance(state.get(name), torch.Tensor):
            raise RankError(f"the state has no tensor {name!r}")
        if state[name].shape != tensor.shape:
            found, wanted = list(state[name].shape), list(tensor.shape)
            raise RankError(f"{name!r} has shape {found} in the state, but {wanted} in the model")
    for name in state:
        if name not in own:
            raise RankError(f"the state has {name!r}, which the model does not have")


def _agree(transport: Transport, act: Callable[[], T]) -> T:
    """Do something on every rank; where any rank fails, raise on all of them and say which and why."""
    result, problem = None, None
    try:
        result = act()
    except Exception as error:
        problem = (type(error) if isinstance(error, SoapstoneError) else RankError, str(error) or type(error).__name__)
    problems = transport.exchange(problem)
    for rank, found in enumerate(problems):
        if found is not None:
            kind, message = found
            raise kind(message if transport.size == 1 else f"rank {rank}: {message}")
    return result  # type: ignore[return-value]


def parallelize(
    work: Workload,
    graph: OperatorGraph,
    topology: Topology,
    strategy: Strategy,
    *,
    costs: Costs | None = None,
    dropout: str = "counter",
    bucket_bytes: int = 0,
    transport: Transport | None = None,
) -> Parallel:
    """Make this rank's share of a model under a strategy; every rank calls it, rank i is device i.

    Without a transport it is torch.distributed's default group. `dropout="replay"` draws torch's own masks, going on
    from its generator as it is now; `bucket_bytes` joins gradients as in `simulate`. Raises a
    SoapstoneError on every rank where any rank's arguments, plan or weights do not fit, before any tensor moves.
    """
    transport = ProcessTransport() if transport is None else transport
    size = transport.size

    def prepare() -> Simulation:
        _check_arguments(work, graph, topology, dropout, size)
        return simulate(graph, topology, strategy, costs=costs, bucket_bytes=bucket_bytes)

    simulation = _agree(transport, prepare)
    state = torch.get_rng_state()
    order, seed = _common_plan(transport, simulation, work, dropout, state)

    def build() -> tuple[Executor, Store]:
        store = Store(simulation, transport.rank, _state(work.model))
        draws = CounterDraws(seed) if dropout == "counter" else ReplayDraws(graph, state)
        program = make_program(simulation, order, transport.rank)
        return Executor(simulation, program, store, transport, draws), store

    executor, store = _agree(transport, build)
    transport.prepare(groups_of(simulation))
    return Parallel(work, executor, store, transport)


def _check_arguments(work: Workload, graph: OperatorGraph, topology: Topology, dropout: str, size: int) -> None:
    if size != topology.num_devices:
        raise RankError(f"there are {size} ranks for {topology.num_devices} devices; start one rank a device")
    if dropout not in ("counter", "replay"):
        raise RankError(f"dropout={dropout!r} is not known; use 'counter' or 'replay'")
    if work.model.training != graph.settings.training:
        was, now = ("train", "eval") if graph.settings.training else ("eval", "train")
        raise RankError(f"the graph was captured in {was} mode, but the model is in {now} mode; call model.{was}()")
    state = _state(work.model)
    for tensor in graph.tensors:
        if tensor.source not in ("parameter", "buffer"):
            continue
        found = state.get(tensor.name)
        if found is None or tuple(found.shape) != tensor.shape or found.dtype != getattr(torch, tensor.dtype):
            described = f"{tensor.dtype} tensor {tensor.name!r} of shape {list(tensor.shape)}"
            raise RankError(f"the model has no {described}, but the graph has; capture the model anew")
        if tensor.grad and not found.requires_grad:
            raise RankError(f"{tensor.name!r} was trained when the graph was captured, but is frozen now; capture anew")


def _common_plan(
    transport: Transport, simulation: Simulation, work: Workload, dropout: str, state: torch.Tensor
) -> tuple[list[int], int]:
    """Rank 0's order and seed, once all ranks have shown that they have the same tasks, weights and random state."""
    facts = {
        "the plan": simulation.fingerprint,
        "the dropout mode": dropout,
        "the initial weights": _checksum(_state(work.model)),
        "torch's random state": _checksum({0: state}) if dropout == "replay" else "",
    }
    first = transport.rank == 0
    mine = (facts, simulation.order if first else None, torch.initial_seed() if first else None)
    everyone = transport.exchange(mine)
    for rank, (found, _, _) in enumerate(everyone):
        for what, value in found.items():
            if value != everyone[0][0][what]:
                raise RankError(f"ranks 0 and {rank} disagree on {what}; {_REMEDIES[what]}")
    return everyone[0][1], int(everyone[0][2]) & (2**63 - 1)


_SEED = "call torch.manual_seed with the same number on every rank before making the model"
_REMEDIES = {
    "the plan": "give every rank the same graph, topology and strategy",
    "the dropout mode": "pass the same dropout= on every rank",
    "the initial weights": f"{_SEED}, or load the same checkpoint",
    "torch's random state": f"{_SEED}, and draw the same numbers since",
}


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def _checksum(tensors: Mapping[Any, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(str(name).encode())
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
