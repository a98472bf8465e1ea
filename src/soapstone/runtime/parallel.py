"""The model that trains under a strategy: what a user calls on each rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

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
        self._idle = nn.Parameter(torch.empty(0))

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Forward, backward and gradient sync. Every rank passes the whole batch, inputs then targets, and gets the
        same loss; gradients of the step before are dropped. Raises RankError on every rank where one rank's batch
        does not fit."""
        _agree(self._transport, lambda: self._check(batch))
        for _, parameter in self._store.parameters():
            parameter.grad = None
        try:
            loss = self._executor.step(batch)
            everyone = tuple(range(self._transport.size))
            return self._transport.all_reduce(-1, loss, everyone) if len(everyone) > 1 else loss
        except BaseException as error:
            self._transport.fail(str(error) or type(error).__name__)
            raise

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's shards, for an elementwise torch optimizer; an empty parameter where it holds none."""
        shards = [parameter for _, parameter in self._store.parameters()]
        yield from shards or [self._idle]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shards by the model's own names."""
        yield from self._store.parameters()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients by name, on every rank; every rank must call this."""
        return self._store.assemble(self._transport.exchange(self._store.owned(gradients=True)))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's state, on every rank; every rank must call this."""
        whole = self._store.assemble(self._transport.exchange(self._store.owned(gradients=False)))
        whole |= {name: counter.clone() for name, counter in self._store.counters.items()}
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._work.model.state_dict().items():
            found = whole.get(self._graph.aliases.get(name, name))
            state[name] = tensor.detach().clone() if found is None else found
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take a whole state, such as `state_dict` gives; each rank keeps its own part of it."""
        aliases = {kept: tied for tied, kept in self._graph.aliases.items()}
        full = dict(state) | {
            kept: state[tied] for kept, tied in aliases.items() if tied in state and kept not in state
        }
        _agree(self._transport, lambda: self._store.load(full))


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
    transport: Transport | None = None,
) -> Parallel:
    """Make this rank's share of a model under a strategy; every rank calls it, rank i is device i.

    Without a transport it is torch.distributed's default group. `dropout="replay"` draws torch's own masks. Raises a
    SoapstoneError on every rank where any rank's arguments, plan or weights do not fit, before any tensor moves.
    """
    transport = ProcessTransport() if transport is None else transport
    simulation = _agree(transport, lambda: _prepare(work, graph, topology, strategy, costs, dropout, transport))
    order, seed = _common_plan(transport, simulation, work)

    def build() -> tuple[Executor, Store]:
        store = Store(simulation, transport.rank, _state(work.model))
        draws = CounterDraws(seed) if dropout == "counter" else ReplayDraws(graph)
        program = make_program(simulation, order, transport.rank)
        return Executor(simulation, program, store, transport, draws), store

    executor, store = _agree(transport, build)
    transport.prepare(groups_of(simulation))
    return Parallel(work, executor, store, transport)


def _prepare(
    work: Workload, graph: OperatorGraph, topology: Topology, strategy: Strategy, costs: Costs | None, dropout: str,
    transport: Transport,
) -> Simulation:  # fmt: skip
    if transport.size != topology.num_devices:
        raise RankError(f"there are {transport.size} ranks for {topology.num_devices} devices; start one rank a device")
    if dropout not in ("counter", "replay"):
        raise RankError(f"dropout={dropout!r} is not known; use 'counter' or 'replay'")
    state = _state(work.model)
    for tensor in graph.tensors:
        if tensor.source in ("parameter", "buffer"):
            found = state.get(tensor.name)
            if found is None or tuple(found.shape) != tensor.shape:
                raise RankError(f"the model has no {tensor.name!r} of shape {list(tensor.shape)}; capture it anew")
    return simulate(graph, topology, strategy, costs=costs)


def _common_plan(transport: Transport, simulation: Simulation, work: Workload) -> tuple[list[int], int]:
    """Rank 0's order and seed, once all ranks have shown that they have the same tasks and weights."""
    first = transport.rank == 0
    order = simulation.order if first else None
    mine = (simulation.fingerprint, _checksum(work.model), order, torch.initial_seed() if first else None)
    everyone = transport.exchange(mine)
    for rank, (plan, weights, _, _) in enumerate(everyone):
        if plan != everyone[0][0]:
            raise RankError(
                f"ranks 0 and {rank} disagree on the plan ({everyone[0][0]} and {plan}); "
                "give every rank the same graph, topology and strategy"
            )
        if weights != everyone[0][1]:
            raise RankError(
                f"ranks 0 and {rank} start from different weights; call torch.manual_seed with the same number on "
                "every rank before making the model, or load the same checkpoint"
            )
    return everyone[0][2], int(everyone[0][3]) & (2**63 - 1)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def _checksum(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(_state(model).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
