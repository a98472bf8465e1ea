"""What each device must hold.

A part keeps what its backward reads: its share of the values that the graph names as saved, halos and received copies
included. While it runs, it also holds everything that it reads and makes; what it makes stays until the last reader on
its device, or the last message that carries it, is done; a message's bytes lie at its receiver until the readers there
are done. Gradients, optimizer states and the buckets of a sync come on top. The bound adds all of this up whatever the
order; the peak follows the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..graph import OperatorGraph
from .tasks import BACKWARD, FORWARD, SYNC

if TYPE_CHECKING:
    from .. import _core
    from ..strategy import Strategy

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def bound_of(native: _core.TaskGraph | _core.Simulator, optimizer: str) -> np.ndarray:
    """Bytes by device that no order of the tasks can pass."""
    return native.memory_bound(states_of(optimizer))


def states_of(optimizer: str) -> int:
    """How many numbers an optimizer keeps for each element."""
    return STATES.get(optimizer, 2)


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
    bound: np.ndarray
    peak: np.ndarray  # along the timeline


@dataclass(frozen=True)
class _Parts:
    """Bytes of each part of one op, where the parts run, and how many of them share one output part."""

    saved: list[int]
    made: list[int]
    working: list[int]
    copies: int
    devices: list[int]


def memory_of(
    graph: OperatorGraph, strategy: Strategy, native: _core.TaskGraph, tasks: np.ndarray, optimizer: str
) -> Memory:
    """The memory of a played task graph; `tasks` are its rows with their times."""
    count = strategy.topology.num_devices
    parameters, gradients, saved, made, buckets, transient = native.memory()
    states = gradients * states_of(optimizer)
    parts = [_Parts(*native.part_bytes(i), devices) for i, (_, devices) in enumerate(strategy.native)]
    ledger = _Ledger(native, tasks, parts, count)
    ledger.computes()
    ledger.messages(graph.producer)
    peak = parameters + gradients + states + ledger.peak()
    bound = bound_of(native, optimizer)
    return Memory(parameters, gradients, states, saved, made, transient, buckets, bound, peak)


class _Ledger:
    """What comes and goes on each device, and when. All parts of all ops stand in one row."""

    def __init__(self, native: _core.TaskGraph, tasks: np.ndarray, parts: list[_Parts], count: int) -> None:
        self.native, self.tasks, self.parts, self.count = native, tasks, parts, count
        self.first = np.cumsum([0, *(len(part.devices) for part in parts)])  # of each op, in the row
        self.device = np.concatenate([part.devices for part in parts])
        self.saved, self.outputs = (np.concatenate([getattr(p, name) for p in parts]) for name in ("saved", "made"))
        self.done = np.zeros(len(self.device), np.int64)  # when a part's forward is over
        self.rows: list[np.ndarray] = []  # (device, time, bytes)

    def hold(self, device: np.ndarray, since: np.ndarray, until: np.ndarray, size: np.ndarray) -> None:
        self.rows += [np.stack([device, since, size]), np.stack([device, np.maximum(since, until), -size])]

    def computes(self) -> None:
        """Every task's own memory while it runs, and what stays of a part until its backward is over."""
        tasks, working = self.tasks, np.concatenate([part.working for part in self.parts])
        over = np.zeros_like(self.done)
        for kind, when in ((FORWARD, self.done), (BACKWARD, over)):
            rows = tasks[tasks["kind"] == kind]
            place = self.first[rows["op"]] + rows["part"]
            self.hold(self.device[place], rows["start"], rows["end"], working[place])
            np.maximum.at(when, place, rows["end"])
        self.hold(self.device, self.done, over, self.saved)
        for row in np.flatnonzero(tasks["kind"] == SYNC):
            devices = np.array(self.native.task(int(row)).devices)
            start, end, size = (np.full(len(devices), tasks[name][row]) for name in ("start", "end", "bytes"))
            self.hold(devices, start, end, size)

    def messages(self, maker: dict[int, int]) -> None:
        """Outputs until their readers and messages are done, messages until their readers are."""
        tensor, part, device, source, forward, backward, begin, ops, parts = self.native.flow_columns()
        read = np.maximum.reduceat(self.done[self.first[ops] + parts], begin) if len(begin) else begin
        for row, at in ((forward, device), (backward, source)):
            moved = row >= 0
            tasks = self.tasks[row[moved]]
            until = np.maximum(read[moved], tasks["end"]) if at is device else tasks["end"]
            self.hold(at[moved], tasks["start"], until, tasks["bytes"])
        read = np.where(forward >= 0, self.tasks["end"][forward], read)
        self._outputs(np.array([maker[t] for t in tensor.tolist()], np.int64), part, source, read)

    def _outputs(self, op: np.ndarray, part: np.ndarray, source: np.ndarray, read: np.ndarray) -> None:
        """An output part lies at each of its holders; a flow takes it from one of them."""
        copies = np.array([part.copies for part in self.parts])
        own = np.concatenate([np.arange(len(p.devices)) // p.copies for p in self.parts])
        begin = np.cumsum([0, *(len(p.devices) // p.copies for p in self.parts)])
        owner = np.repeat(np.arange(len(copies)), np.diff(self.first))
        keys = (begin[owner] + own) * self.count + self.device
        distinct, place = np.unique(keys, return_inverse=True)
        until = np.zeros(len(distinct), np.int64)
        if len(op):
            np.maximum.at(until, np.searchsorted(distinct, (begin[op] + part) * self.count + source), read)
        self.hold(self.device, self.done, until[place], self.outputs)

    def peak(self) -> np.ndarray:
        rows = np.concatenate(self.rows, axis=1)
        rows = rows[:, np.lexsort((rows[2], rows[1], rows[0]))]  # at one time, what goes goes first
        cuts = np.searchsorted(rows[0], np.arange(self.count + 1))
        return np.array([rows[2, a:b].cumsum().max(initial=0) for a, b in pairwise(cuts)])
