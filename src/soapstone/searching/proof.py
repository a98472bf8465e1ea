"""The best strategy of the whole space, with proof: branch and bound, by the core, on threads.

No relabelling of identical devices maps the space onto itself: it holds one order of devices for each placement, so
there is no symmetry left to break.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import inf
from time import monotonic

from .. import _core
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph
from ..simulator import Training, translated_errors
from ..strategy import Strategy
from ..topology import Topology
from .chain import check_budget
from .interrupts import interrupts
from .mcmc import search
from .problem import Problem
from .starts import TICK

MOST_PAIRS = 2_000_000  # of configurations of neighbouring ops


@dataclass(frozen=True)
class Proof:
    """The best strategy that was seen. It is the best of the space where it is `proved`."""

    strategy: Strategy
    makespan: float
    proved: bool
    nodes: int
    simulated: int
    root_bound: float  # of every strategy's makespan, from below, before anything is configured
    log10_size: float
    seconds: float
    interrupted: bool

    @property
    def root_gap(self) -> float:
        return 1 - self.root_bound / self.makespan


@dataclass(frozen=True)
class ProofProgress:
    """How far a proof is; the best makespan is in seconds, None before there is one."""

    share: float  # of the pairs of choices for the first two ops
    seconds: float
    makespan: float | None


def exhaustive(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    budget: float | None = 600.0,
    first: Strategy | None = None,
    threads: int | None = None,
    progress: Callable[[ProofProgress], None] | None = None,
) -> Proof:
    """Go through the space from `first`, by default what a short search finds, for at most so many seconds. The memory
    limit does not count here. Ctrl-C ends it without a proof. Raises SoapstoneError for a space that is far too large.
    """
    check_budget(budget)
    if threads is not None and not (type(threads) is int and 0 < threads <= 256):
        raise SoapstoneError(f"threads={shortened(threads)} is not a whole number from 1 to 256")
    if first is not None and not isinstance(first, Strategy):
        raise SoapstoneError(f"first={shortened(first)} is not a Strategy; None begins with what a short search finds")
    begun, end = monotonic(), inf if budget is None else monotonic() + budget
    problem = Problem(graph, topology, training=training)
    _refuse_giants(problem)
    stopped = False
    if first is None:
        short = search(
            graph, topology, training=training, budget=min(2.0, budget or inf),
            memory_limit=False, sharding=False, microbatches=1,
        )  # fmt: skip
        first, stopped = short.strategy, short.interrupted
    first.check(graph, topology)
    problem.ask(first.native)
    tables = [problem.options.all_of(index) for index in range(len(graph.ops))]
    native = _core.Exhaustive(graph.native, problem.machine, problem.times.native, tables)
    left = 0.0 if stopped else max(end - monotonic(), 0.0)
    proved, interrupted = _run(native, first, threads or os.cpu_count() or 1, left, progress or (lambda _: None))
    return Proof(
        problem.strategy(native.best),
        native.makespan * 1e-9,
        proved,
        native.num_nodes,
        native.num_simulated,
        native.root_bound * 1e-9,
        problem.space.log10_size,
        monotonic() - begun,
        stopped or interrupted,
    )


def _run(
    native: _core.Exhaustive,
    first: Strategy,
    threads: int,
    seconds: float,
    report: Callable[[ProofProgress], None],
) -> tuple[bool, bool]:
    """Whether it is proved, and whether somebody interrupted it."""
    begun = monotonic()
    with ThreadPoolExecutor(1) as pool, interrupts(native.stop) as interrupt:
        future = pool.submit(native.run, first.native, threads, min(seconds, 1e18))
        try:
            while not wait([future], TICK).done:
                best = native.makespan * 1e-9 if native.makespan < 2**62 else None
                report(ProofProgress(native.share, monotonic() - begun, best))
        finally:
            if not future.done():
                native.stop()
            wait([future])
    with translated_errors():
        return future.result(), interrupt.happened


def _refuse_giants(problem: Problem) -> None:
    sizes = [len(problem.space.configurations(op.name)) for op in problem.graph.ops]
    maker = problem.graph.producer
    edges = {(maker[o.tensor], i) for i, op in enumerate(problem.graph.ops) for o in op.inputs if o.tensor in maker}
    pairs = sum(sizes[a] * sizes[b] for a, b in edges)
    if pairs > MOST_PAIRS:
        raise SoapstoneError(
            f"10^{problem.space.log10_size:.0f} strategies are too many to go through; use search, or a smaller model "
            "or fewer devices, such as lenet on p100:1x4"
        )
