"""What each device must hold.

A part keeps what its backward reads: its share of the values that the graph names as saved, halos and received copies
included. While it runs, it also holds everything that it reads and makes; what it makes stays until the last reader on
its device, or the last message that carries it, is done; a message's bytes lie at its receiver until the readers there
are done. Gradients, optimizer states and the buckets of a sync come on top. The bound adds all of this up whatever the
order; the peak follows the timeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..graph import ITEM_SIZES, OperatorGraph, Tensor
from .tasks import BACKWARD, FORWARD, SYNC, extents_of

if TYPE_CHECKING:
    from .. import _core
    from ..strategy import Strategy

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}  # numbers an optimizer keeps for each element


@dataclass(frozen=True)
class Memory:
    """Bytes by device. `bound` is the sum of the others: what no order of the same tasks can pass."""

    parameters: np.ndarray
    gradients: np.ndarray
    states: np.ndarray
    saved: np.ndarray
    made: np.ndarray  # outputs, and what messages bring
    transient: np.ndarray  # of the largest task
    buckets: np.ndarray
    peak: np.ndarray  # along the timeline

    @property
    def bound(self) -> np.ndarray:
        total: np.ndarray = self.parameters + self.gradients + self.states + self.saved + self.made
        total = total + self.transient + self.buckets
        return total


@dataclass(frozen=True)
class _Parts:
    """Bytes of each part of one op, where the parts run, and how many of them share one output part."""

    saved: np.ndarray
    made: np.ndarray
    working: np.ndarray
    devices: list[int]
    copies: int


def memory_of(
    graph: OperatorGraph, strategy: Strategy, native: _core.TaskGraph, tasks: np.ndarray, optimizer: str
) -> Memory:
    """The memory of a played task graph; `tasks` are its rows with their times."""
    count = strategy.topology.num_devices
    parts = [_parts(graph, strategy, native, i) for i in range(len(graph.ops))]
    saved, transient, parameters, gradients = (np.zeros(count, np.int64) for _ in range(4))
    for part in parts:
        np.add.at(saved, part.devices, part.saved)
        np.maximum.at(transient, part.devices, part.working)
    for i, tensor in enumerate(graph.tensors):
        for holders, size in _shards(native, i, tensor) if tensor.source in ("parameter", "buffer") else []:
            parameters[holders] += size
            gradients[holders] += size if tensor.grad else 0
    states = gradients * STATES.get(optimizer, 2)
    ledger = _Ledger(native, tasks, parts, count)
    ledger.computes()
    ledger.messages({o.tensor: i for i, op in enumerate(graph.ops) for o in op.outputs})
    peak = parameters + gradients + states + ledger.peak()
    return Memory(parameters, gradients, states, saved, ledger.made, transient, ledger.buckets, peak)


def _parts(graph: OperatorGraph, strategy: Strategy, native: _core.TaskGraph, index: int) -> _Parts:
    op, (degrees, devices) = graph.ops[index], strategy.native[index]
    held = np.array(native.volumes(index), np.int64) * [ITEM_SIZES[value.dtype] for value in op.values]
    extents = np.array([prod(e) for e in extents_of(op, degrees)])
    extra = np.ceil(op.extra * extents / prod(dim.size for dim in op.dims)).astype(np.int64)
    saved = held[:, list(op.saved)].sum(1) + extra
    made = held[:, [o.value for o in op.outputs]].sum(1)
    copies = prod(degree for dim, degree in zip(op.dims, degrees) if dim.extra)
    return _Parts(saved, made, held.sum(1) + extra, devices, copies)


def _shards(native: _core.TaskGraph, index: int, tensor: Tensor) -> Iterator[tuple[list[int], int]]:
    for holders, boxes in native.pieces(index):
        yield holders, sum(prod(hi - lo for lo, hi in box) for box in boxes) * ITEM_SIZES[tensor.dtype]


class _Ledger:
    """What comes and goes on each device, and when."""

    def __init__(self, native: _core.TaskGraph, tasks: np.ndarray, parts: list[_Parts], count: int) -> None:
        self.native, self.tasks, self.parts, self.count = native, tasks, parts, count
        self.made, self.buckets = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.rows: list[tuple[int, int, int]] = []  # (device, time, bytes)
        self.done: dict[tuple[int, int], int] = {}  # (op, part) -> when its forward is over

    def hold(self, device: int, since: int, until: int, size: int) -> None:
        self.rows += [(device, since, size), (device, until, -size)]

    def computes(self) -> None:
        """Every task's own memory while it runs, and what stays of a part until its backward is over."""
        over: dict[tuple[int, int], int] = {}
        kinds, ops, numbers = (self.tasks[name].tolist() for name in ("kind", "op", "part"))
        starts, ends, sizes = (self.tasks[name].tolist() for name in ("start", "end", "bytes"))
        for row, kind in enumerate(kinds):
            if kind in (FORWARD, BACKWARD):
                op, part = ops[row], numbers[row]
                found = self.parts[op]
                self.hold(found.devices[part], starts[row], ends[row], int(found.working[part]))
                when = self.done if kind == FORWARD else over
                when[op, part] = max(when.get((op, part), 0), ends[row])
            elif kind == SYNC:
                for device in self.native.task(row).devices:
                    self.buckets[device] += sizes[row]
                    self.hold(device, starts[row], ends[row], sizes[row])
        for (op, part), since in self.done.items():
            found = self.parts[op]
            self.hold(found.devices[part], since, max(over.get((op, part), 0), since), int(found.saved[part]))

    def messages(self, maker: dict[int, int]) -> None:
        """Outputs until their readers and messages are done, messages until their readers are."""
        starts, ends, sizes = (self.tasks[name].tolist() for name in ("start", "end", "bytes"))
        until: dict[tuple[int, int, int], int] = {}  # (op, output part, device)
        for index in range(self.native.num_flows):
            flow = self.native.flow(index)
            read = max(self.done[reader] for reader in flow.readers)
            if flow.forward >= 0:
                self.made[flow.device] += sizes[flow.forward]
                self.hold(flow.device, starts[flow.forward], max(read, ends[flow.forward]), sizes[flow.forward])
                read = ends[flow.forward]
            if flow.backward >= 0:
                self.made[flow.source] += sizes[flow.backward]
                self.hold(flow.source, starts[flow.backward], ends[flow.backward], sizes[flow.backward])
            place = (maker[flow.tensor], flow.part, flow.source)
            until[place] = max(until.get(place, 0), read)
        for (op, part), since in self.done.items():
            found = self.parts[op]
            device, size = found.devices[part], int(found.made[part])
            self.made[device] += size
            self.hold(device, since, max(until.get((op, part // found.copies, device), 0), since), size)

    def peak(self) -> np.ndarray:
        rows = np.array(self.rows, np.int64).reshape(-1, 3)
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]  # at one time, what goes goes first
        cuts = np.searchsorted(rows[:, 0], np.arange(self.count + 1))
        return np.array([rows[a:b, 2].cumsum().max(initial=0) for a, b in pairwise(cuts)])
