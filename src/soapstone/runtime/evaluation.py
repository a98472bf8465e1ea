"""A model's output in eval mode, under the strategy that it trains with: a second capture, planned and run forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from .. import _core
from ..baselines import data_parallel
from ..errors import RankError, SoapstoneError
from ..graph import OperatorGraph
from ..parts import common, lengths, reframe
from ..simulator import simulate
from ..strategy import Strategy
from ..tracing import FrozenValues, Workload, capture_output
from .agreement import agree
from .batch import BatchCheck
from .draws import CounterDraws
from .execute import Executor
from .iteration import evaluate
from .keys import Key
from .plan import Plan, open_connections
from .shard import Shard
from .store import STORED, Store


class Evaluation:
    """For inputs of one shape. Shards of the training that fit are read where they are; `stale` says that some do not,
    and `load` must bring them."""

    def __init__(self, work: Workload, training: Executor, inputs: Sequence[torch.Tensor]) -> None:
        self._training, transport = training, training.transport

        def prepare() -> Plan:
            example = work.filled(*(x.to(work.place) if isinstance(x, torch.Tensor) else x for x in inputs))
            graph = capture_output(example, training.graph)
            self._frozen = FrozenValues(work, graph, lambda: capture_output(example, training.graph), mode=False)
            strategy = _like(graph, training.plan.simulation.strategy)
            simulation = simulate(graph, strategy.topology, strategy)
            return Plan(simulation, simulation.order, transport.size)

        plan = agree(transport, prepare)
        if len(set(transport.exchange(plan.simulation.fingerprint))) > 1:
            raise RankError("the ranks captured different models in eval mode; give every rank the same model")
        graph, place, device = plan.placement.graph, training.place, training.device
        stored = (tensor for tensor in graph.tensors if tensor.source in STORED)
        blank = ((t.name, torch.zeros(t.shape, dtype=getattr(torch, t.dtype))) for t in stored)
        self._store = Store(plan.simulation, device, blank, place)
        self._share_shards()
        self.stale = any(transport.exchange(bool(self._missing)))
        draws = CounterDraws(0, place)
        self._executor = Executor(plan, device, training.ranks, self._store, transport, draws, place, training=False)
        self._check = BatchCheck(graph, self._executor.read)
        open_connections(plan, training.ranks, transport)

    def _share_shards(self) -> None:
        store = self._training.store
        trained = {shard.name: number for number, shard in store.shards.items()}
        self._missing = []
        self._shared: dict[int, Shard] = {}
        for number, shard in self._store.shards.items():
            other = trained.get(shard.name, -1)
            if other >= 0 and _covers(store, other, self._store, number):
                self._shared[number] = store.shards[other]
            else:
                self._missing.append(shard)
                shard.tensor = shard.tensor.detach()

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take what the training keeps elsewhere from the whole state."""
        for shard in self._missing:
            shard.tensor.copy_(shard.cut(state[shard.name]))

    def __call__(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        executor, graph = self._executor, self._executor.graph

        def check() -> None:
            self._frozen.check()
            self._check(inputs)

        agree(executor.transport, check)
        for number, shard in self._shared.items():  # as they are now: a user may have set .data
            self._store.shards[number].tensor = shard.tensor.detach()
        found = evaluate(executor, self._check.cut(inputs, executor.place)[0])
        return gathered(executor, graph.loss, found).to(executor.place)


def _covers(trained: Store, own: int, evaluated: Store, number: int) -> bool:
    """Whether two stores lay out a shard alike, and training keeps all of it up to date that evaluation reads."""
    shard, other = evaluated.shards[number], trained.shards[own]
    if own in trained.sharded:
        return False
    if (list(other.box), other.dims) != (list(shard.box), shard.dims):
        return False
    boxes = trained.read_boxes(own)
    return all(sum(common(read, box) for box in boxes) == common(read, read) for read in evaluated.read_boxes(number))


def gathered(executor: Executor, tensor: int, found: Mapping[Key, torch.Tensor]) -> torch.Tensor:
    """A whole tensor on every rank, of the parts that each of them found; on the CPU."""
    placement, graph = executor.placement, executor.graph
    parts = {placement.home(tensor, part): part for part in placement.output_parts(tensor)}
    own = [(parts[key], piece.cpu()) for key, piece in found.items() if key in parts]
    dims = graph.native.factoring(tensor)
    whole = torch.empty([n for axis in dims for n in axis], dtype=getattr(torch, graph.tensors[tensor].dtype))
    for part, piece in (row for rows in executor.transport.exchange(own) for row in rows):
        box, own_dims = executor.weaver.output(tensor, part)
        for target in _core.project(list(box), [list(axis) for axis in own_dims], dims):
            cut = reframe(piece, box, own_dims, target, dims).reshape(lengths(target))
            whole[tuple(slice(lo, hi) for lo, hi in target)] = cut
    return whole.reshape(graph.tensors[tensor].shape)


def _like(graph: OperatorGraph, trained: Strategy) -> Strategy:
    """The strategy of the training for the ops that it knows, data parallelism for the others; weights whole."""
    strategy = data_parallel(graph, trained.topology)
    known = {op.name for op in trained.graph.ops}
    for op in graph.ops:
        if op.name in known:
            try:
                strategy = strategy.replace({op.name: replace(trained[op.name], shard="none")})
            except SoapstoneError:  # another op by the same name, or another batch
                continue
    return strategy
