"""Batches of other shapes than the one that was captured: a last batch that is shorter, or sentences of other lengths.

Each new shape is captured once, and trains under the same strategy: its ops have the same names, and the same shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from ..errors import GraphError, RankError, SoapstoneError
from ..graph import OperatorGraph, microbatch
from ..processes import say
from ..simulator import simulate
from ..strategy import Strategy
from ..tracing import FrozenValues, Workload, capture_again
from .agreement import agree, check_same, checksum
from .batch import BatchCheck
from .compiling import SEGMENT_BYTES
from .execute import Executor, Values
from .plan import Plan, open_connections
from .spreading import Spreading
from .statistics import check_statistics


def shapes_of(batch: Sequence[Any]) -> str:
    """In words."""
    return ", ".join(str(list(x.shape)) if isinstance(x, torch.Tensor) else type(x).__name__ for x in batch)


class Program:
    """What a rank runs for batches of one shape."""

    def __init__(self, work: Workload, executor: Executor, spread: Spreading | None = None) -> None:
        graph = executor.plan.simulation.graph
        self.executor, self.check = executor, BatchCheck(graph, executor.read, executor.microbatches)
        self.spread = spread
        self._frozen = FrozenValues(work, graph, lambda: capture_again(work, graph))
        self.is_new = True

    def given(self, batch: tuple[Any, ...]) -> list[Values]:
        """What this rank reads of a batch, by microbatch. Raises a SoapstoneError unless the batch and the model are as
        captured."""
        self._frozen.check()
        self.check(batch)
        return self.executor.given(self.check.cut(batch, self.executor.place))

    def compare_first(self, batch: tuple[torch.Tensor, ...]) -> bool:
        """Whether any rank passes slices of the first batch. Raises RankError unless all ranks pass the same samples
        in it."""
        whole, total = self.check.is_whole(batch), checksum(dict(enumerate(batch)))
        everyone = self.executor.transport.exchange((whole, total, self.check.sums(batch)))
        found: dict[str, tuple[str, int]] = {}
        alike: dict[str, tuple[set[str], int]] = {}
        for rank, (is_whole, total, sums) in enumerate(everyone):
            for part, sum_ in ({"all": total, **sums} if is_whole else sums).items():
                first, other = found.setdefault(part, (sum_, rank))
                if first != sum_:
                    raise RankError(
                        f"ranks {other} and {rank} pass different batches; every rank must pass the whole batch, or "
                        "its slices of it (a DistributedSampler gives each rank samples of its own)"
                    )
            parts, other = alike.setdefault(total, (set(sums), rank))
            if sums and not is_whole and parts.isdisjoint(sums):
                raise RankError(
                    f"ranks {other} and {rank} pass the same samples where each has slices of its own; the first batch "
                    "of a loop must have the shapes that were captured"
                )
        self.is_new = False
        return not all(is_whole for is_whole, *_ in everyone)


class Shapes:
    """The programs of a model, by the shapes of their batches."""

    def __init__(self, work: Workload, executor: Executor) -> None:
        self._work, self._programs = work, [Program(work, executor)]
        self._sliced: bool | None = None  # whether ranks pass slices; unknown before the first batch
        self._unsynced: list[Program] = []  # that have run since gradients were summed

    @property
    def first(self) -> Program:
        """For the shapes that the model was captured with."""
        return self._programs[0]

    def choose(self, batch: Sequence[Any]) -> tuple[Program | None, int]:
        """The program for a batch, and its number. New shapes have none, and get the next number. The first program
        refuses what is not a batch."""
        may_be_slices = self._sliced is not False and self.first.check.is_sliced(batch)
        if self._sliced or may_be_slices or not self.first.check.is_like(batch):
            return self.first, 0
        known = (n for n, program in enumerate(self._programs) if program.check.is_whole(batch))
        number = next(known, len(self._programs))
        return (self._programs[number] if number < len(self._programs) else None), number

    def compare_first(self, program: Program, batch: tuple[torch.Tensor, ...]) -> None:
        """Raise RankError unless all ranks pass the same samples in a program's first batch."""
        self._sliced = program.compare_first(batch)

    def add(self, batch: Sequence[torch.Tensor]) -> None:
        """Capture the model for the shapes of this batch. Every rank calls this. Raises a SoapstoneError on all of them
        if it cannot be trained on under the same strategy."""
        first, start = self.first.executor, time.perf_counter()
        check_same(first.transport.exchange(shapes_of(batch)))
        work = self._work.filled(*(x.to(self._work.place) for x in batch))

        def prepare() -> Plan:
            with _naming(batch):
                if first.is_graphed and first.store.sharded:
                    raise RankError("CUDA graphs need the weights to stay where they are")
                graph = capture_again(work, first.plan.simulation.graph)
                simulation = simulate(graph, first.plan.simulation.strategy.topology, self._strategy(graph))
                check_statistics(simulation)
            most_bytes = SEGMENT_BYTES if first.is_compiled else None
            return Plan(simulation, simulation.order, first.transport.size, most_bytes=most_bytes)

        plan = agree(first.transport, prepare)
        if len(set(first.transport.exchange(plan.simulation.fingerprint))) > 1:
            raise RankError("the ranks captured different models; give every rank the same model")

        def build() -> Program:
            with _naming(batch):
                store = first.store.read_by(plan.simulation)
            draws = first.draws.of(plan.simulation.strategy.played)
            executor = Executor(
                plan, first.device, first.ranks, store, first.transport, draws, first.place, compiled=first.is_compiled
            )
            return Program(work, executor, Spreading(plan.placement, store, first.store, first.device, first.ranks))

        program = agree(first.transport, build)
        open_connections(plan, first.ranks, first.transport)
        if program.spread is not None:
            first.transport.open([], program.spread.bytes)
        self._programs.append(program)
        if first.transport.rank == 0:
            shapes, taken = shapes_of(batch), f"{time.perf_counter() - start:.1f} s"
            say(f"captured the model for batches of {shapes} in {taken}; pad to fewer lengths to capture less often")

    def drop_unsynced(self) -> None:
        """The gradients of earlier steps are gone."""
        self._unsynced.clear()

    def check_sync(self, program: Program) -> None:
        """Raise RankError if earlier steps left gradients that this program would not sum."""
        for other in self._unsynced:
            if other is not program and (name := program.executor.store.unread(other.executor.store)):
                raise RankError(
                    f"steps with sync=False have used values of {name!r} that this batch does not use, so their "
                    "gradients would not be summed; end the accumulation with a batch of the captured shapes"
                )

    def ran(self, program: Program, sync: bool) -> None:
        """A step is over."""
        self._unsynced = [] if sync else [*self._unsynced, program]

    def padded(self, weights: torch.Tensor | None) -> torch.Tensor | None:
        """What a rank weighs by microbatch, padded to one length for all programs."""
        missing = 0 if weights is None else self.first.executor.microbatches - len(weights)
        return nn.functional.pad(weights, (0, missing)) if weights is not None and missing else weights

    def _strategy(self, graph: OperatorGraph) -> Strategy:
        """The strategy for a graph of the same ops, with as many of its microbatches and parts as there are samples
        for."""
        known = self.first.executor.plan.simulation.strategy
        for name in sorted({op.name for op in graph.ops} ^ set(known)):
            raise RankError(f"the model runs other ops for it, such as {name!r}")
        microbatches, played = _cut(graph, known.microbatches)
        fitted = {op.name: known[op.name].fitted(op) for op in played.ops}
        return Strategy(graph, known.topology, fitted, microbatches)


def _cut(graph: OperatorGraph, most: int) -> tuple[int, OperatorGraph]:
    """Into as many microbatches as can be."""
    for count in range(most, 1, -1):
        with suppress(GraphError):
            return count, microbatch(graph, count)
    return 1, graph


@contextmanager
def _naming(batch: Sequence[torch.Tensor]) -> Iterator[None]:
    """Errors say which batch they are about, and what to do."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, SoapstoneError) else f"{type(error).__name__}: "
        raise RankError(
            f"a batch of shapes {shapes_of(batch)} cannot be trained on under this strategy: {kind}{error}; "
            "pad it to the shapes that were captured, or leave it out (drop_last=True)"
        ) from None
