"""Predict one training iteration: build the task graph of a strategy and play it."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np

from .. import _core
from ..graph import OperatorGraph
from ..strategy import Strategy
from ..topology import Topology
from .memory import Filling, Ledger, Memory, memory_of
from .path import critical_path
from .tasks import BACKWARD, COMBINE, COMMUNICATION, FORWARD, GATHER, SYNC, TASK, TRANSFER, UPDATE
from .throughput import Throughput, throughput
from .times import KnownTimes, check_all, machine_of, translated_errors
from .training import Training


class Simulation:
    """One iteration, played. `tasks` is a structured array in key order; a row's kind indexes `KINDS`. Each
    microbatch has rows of its own."""

    def __init__(
        self,
        graph: OperatorGraph,
        topology: Topology,
        strategy: Strategy,
        native: _core.TaskGraph,
        training: Training,
    ) -> None:
        self.graph, self.topology, self.strategy, self.native = graph, topology, strategy, native
        self.training = training
        self.timeline = native.play()

    def __repr__(self) -> str:
        return f"Simulation({len(self.tasks)} tasks, {self.makespan * 1e3:.3f} ms)"

    @cached_property
    def tasks(self) -> np.ndarray:
        rows = np.empty(len(self.native), TASK)
        rows["id"], rows["kind"], rows["op"] = self.native.keys, self.native.kinds, self.native.ops
        rows["microbatch"] = self.native.microbatches
        rows["part"], rows["latency"], rows["bytes"] = self.native.parts, self.native.latencies, self.native.bytes
        rows["ready"], rows["start"], rows["end"] = self.timeline.ready, self.timeline.start, self.timeline.end
        return rows

    @property
    def played(self) -> OperatorGraph:
        """The graph of one microbatch, which the tasks are of."""
        return self.strategy.played

    @property
    def makespan_ns(self) -> int:
        return self.timeline.makespan

    @property
    def makespan(self) -> float:
        """Seconds for one iteration."""
        return self.makespan_ns * 1e-9

    @cached_property
    def moved(self) -> dict[str, int]:
        """Bytes by the kind of task: payload once for each transfer, 2(n - 1) times for each sum among n devices, and
        n - 1 times where each is left with a share, or all gather their shares."""
        kinds, sizes = self.tasks["kind"], self.tasks["bytes"]
        total = {TRANSFER.name: int(sizes[kinds == TRANSFER].sum()), COMBINE.name: 0, SYNC.name: 0, GATHER.name: 0}
        for row in np.flatnonzero(np.isin(kinds, (COMBINE, SYNC, GATHER))):
            task = self.native.task(int(row))
            total[task.kind.name] += task.bytes * (1 if task.is_half else 2) * (len(task.devices) - 1)
        return total

    @property
    def bytes_moved(self) -> int:
        return sum(self.moved.values())

    @property
    def compute_time(self) -> float:
        """Seconds of compute, added up over the devices."""
        compute = np.isin(self.tasks["kind"], (FORWARD, BACKWARD, UPDATE))
        return float(self.native.hold_durations[compute[self.native.hold_rows]].sum()) * 1e-9

    @property
    def throughput(self) -> Throughput:
        """Samples and tokens a second, and the share of the devices' peak."""
        return throughput(self.graph, self.topology, self.makespan)

    @cached_property
    def busy(self) -> dict[str, float]:
        """The share of the iteration in which each device and link serves."""
        total = np.bincount(self.native.hold_resources, self.native.hold_durations, len(self._resource_names))
        return dict(zip(self._resource_names, (total / max(self.makespan_ns, 1)).tolist()))

    @cached_property
    def critical_path(self) -> list[int]:
        """The rows that make the iteration as long as it is, first to last: each begins when the one before it ends, or
        frees what it holds."""
        return critical_path(self.native, self.timeline)

    @cached_property
    def exposed_communication(self) -> float:
        """Seconds of the critical path in which something is moved and no task of the path before it still runs; never
        more than the makespan."""
        rows = self.tasks[self.critical_path]
        ends = np.maximum.accumulate(np.concatenate([[0], rows["end"]]))
        moving = np.isin(rows["kind"], COMMUNICATION)
        return float(np.diff(ends)[moving].sum()) * 1e-9

    @cached_property
    def memory(self) -> Memory:
        """What each device must hold: an upper bound, its parts, and the peak along this timeline."""
        return memory_of(self.native, self.topology, self._ledger, self.training.optimizer)

    @cached_property
    def fullest(self) -> Filling:
        """What fills the device that is nearest to its memory, or furthest above it."""
        share = [peak / device.memory for peak, device in zip(self.memory.peak, self.topology.devices)]
        return self._ledger.filling(int(np.argmax(share)), self.memory)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.native, self.timeline, self.training.optimizer, self.topology.num_devices)

    @property
    def peak_memory(self) -> list[int]:
        """Bytes by device, along this timeline."""
        return [int(size) for size in self.memory.peak]

    @property
    def fits(self) -> bool:
        """Whether along this timeline no device holds more than its memory."""
        return all(peak <= device.memory for peak, device in zip(self.memory.peak, self.topology.devices))

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
        return np.searchsorted(self.native.hold_rows, np.arange(len(self.native) + 1))

    @cached_property
    def order(self) -> list[int]:
        """The rows as they are served: the one order in which all ranks communicate."""
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
    graph: OperatorGraph, topology: Topology, strategy: Strategy, *, training: Training = Training()
) -> Simulation:
    """Play one iteration of a strategy. Raises StrategyError where the strategy is for another graph, SoapstoneError
    where costs are missing."""
    check_all(graph, topology, strategy, training)
    times = KnownTimes(strategy.played, topology, training.costs)
    times.fill_all((i, degrees, devices) for i, (degrees, devices, *_) in enumerate(strategy.native))
    machine = machine_of(topology, times, training)
    with translated_errors():
        played = strategy.played.native
        native = _core.TaskGraph(played, machine, times.native, strategy.native, strategy.microbatches)
        return Simulation(graph, topology, strategy, native, training)
