"""Predict one training iteration: build the task graph of a strategy and play it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import product

import numpy as np

from . import _core
from .costs import AnalyticCosts, Costs, OpTimes
from .errors import SoapstoneError
from .graph import Op, OperatorGraph
from .strategy import Strategy
from .topology import Topology

KINDS = ("forward", "backward", "combine", "transfer", "sync", "update")
FORWARD, BACKWARD, COMBINE, TRANSFER, SYNC, UPDATE = range(6)
TASK = np.dtype(
    [("id", "u8"), ("kind", "i4"), ("op", "i4"), ("part", "i4"), ("ready", "i8"), ("start", "i8"), ("end", "i8"),
     ("latency", "i8"), ("bytes", "i8")]
)  # fmt: skip


class Simulation:
    """One iteration, played. `tasks` is a structured array in key order; a row's kind indexes `KINDS`."""

    def __init__(self, graph: OperatorGraph, topology: Topology, strategy: Strategy, native: _core.TaskGraph) -> None:
        self.graph, self.topology, self.strategy, self.native = graph, topology, strategy, native
        self.timeline = native.play()

    def __repr__(self) -> str:
        return f"Simulation({len(self.tasks)} tasks, {self.makespan * 1e3:.3f} ms)"

    @cached_property
    def tasks(self) -> np.ndarray:
        rows = np.empty(len(self.native), TASK)
        rows["id"], rows["kind"], rows["op"] = self.native.keys, self.native.kinds, self.native.ops
        rows["part"], rows["latency"], rows["bytes"] = self.native.parts, self.native.latencies, self.native.bytes
        rows["ready"], rows["start"], rows["end"] = self.timeline.ready, self.timeline.start, self.timeline.end
        return rows

    @property
    def makespan_ns(self) -> int:
        return self.timeline.makespan

    @property
    def makespan(self) -> float:
        """Seconds for one iteration."""
        return self.makespan_ns * 1e-9

    @property
    def bytes_moved(self) -> int:
        """Payload once for each transfer, 2(n - 1) times for each all-reduce among n devices."""
        total = 0
        for row in np.flatnonzero(np.isin(self.tasks["kind"], (TRANSFER, COMBINE, SYNC))):
            task = self.native.task(int(row))
            total += task.bytes * (1 if task.kind == TRANSFER else 2 * (len(task.devices) - 1))
        return total

    @property
    def compute_time(self) -> float:
        """Seconds of compute, added up over the devices."""
        compute = np.isin(self.tasks["kind"], (FORWARD, BACKWARD, UPDATE))
        return float(sum(hold for row in np.flatnonzero(compute) for _, _, hold in self.resources(int(row)))) * 1e-9

    def predecessors(self, i: int) -> list[int]:
        """The rows that task i waits for."""
        return list(self.native.task(i).after)

    def resources(self, i: int) -> list[tuple[str, int, int]]:
        """What task i holds: (resource, start, hold) in ns; its end is the latest start + hold, plus its latency."""
        names = self._resource_names
        first = self._first_hold[i]
        starts = self.timeline.hold_start
        return [
            (names[resource], int(starts[first + k]), hold)
            for k, (resource, hold) in enumerate(self.native.task(i).holds)
        ]

    @cached_property
    def _resource_names(self) -> list[str]:
        return self.topology.resources

    @cached_property
    def _first_hold(self) -> np.ndarray:
        counts = [len(self.native.task(i).holds) for i in range(len(self.native))]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @cached_property
    def order(self) -> list[int]:
        """The rows by (ready, key): the one order in which all ranks communicate."""
        return [int(row) for row in self.timeline.order]

    @cached_property
    def fingerprint(self) -> str:
        """Of the task graph, whatever its times."""
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        for column in (self.native.keys, self.native.kinds, self.native.bytes):
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(repr(self.strategy.native).encode())
        return digest.hexdigest()[:16]


def simulate(
    graph: OperatorGraph,
    topology: Topology,
    strategy: Strategy,
    *,
    costs: Costs | None = None,
    optimizer: str = "adam",
    bucket_bytes: int = 0,
) -> Simulation:
    """Play one iteration of a strategy. `bucket_bytes` joins neighbouring gradients with the same holders up to that
    size. Raises StrategyError where the strategy is for another graph, SoapstoneError where costs are missing."""
    if type(bucket_bytes) is not int or not 0 <= bucket_bytes < 2**62:
        raise SoapstoneError(f"bucket_bytes={bucket_bytes!r} is not a number of bytes; use 0 for one piece a bucket")
    strategy.check(graph, topology)
    costs = AnalyticCosts() if costs is None else costs
    updates = [costs.update(device.kind, optimizer) for device in topology.devices]
    native = _core.TaskGraph(
        graph.native,
        topology.native,
        strategy.native,
        _times(graph, topology, strategy, costs),
        [per_element for _, per_element in updates],
        max(launch for launch, _ in updates),
        bucket_bytes,
    )
    return Simulation(graph, topology, strategy, native)


def _times(
    graph: OperatorGraph, topology: Topology, strategy: Strategy, costs: Costs
) -> list[list[tuple[int, int, int, int]]]:
    @cache
    def ask(index: int, extents: tuple[int, ...], kind: str, combines: bool) -> tuple[int, int, int, int]:
        times: OpTimes = costs.times(graph, index, extents, kind, combines)
        found = (times.forward, times.backward, times.finish_forward, times.finish_backward)
        if not all(isinstance(ns, int) and 0 <= ns < 2**53 for ns in found):
            raise SoapstoneError(f"the costs give op {graph.ops[index].name!r} {found}; whole nanoseconds are needed")
        return found

    rows = []
    for index, (op, (degrees, devices)) in enumerate(zip(graph.ops, strategy.native)):
        combines = any(d.combinable and degree > 1 for d, degree in zip(op.dims, degrees))
        kinds = [topology.devices[device].kind for device in devices]
        rows.append([ask(index, e, kind, combines) for e, kind in zip(extents_of(op, degrees), kinds)])
    return rows


def extents_of(op: Op, degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents of every part, in row-major order: part i of d over n is [i n // d, (i + 1) n // d)."""
    sizes = [
        [(i + 1) * dim.size // degree - i * dim.size // degree for i in range(degree)]
        for dim, degree in zip(op.dims, degrees)
    ]
    return list(product(*sizes))
