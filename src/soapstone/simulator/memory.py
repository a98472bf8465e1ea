"""What each device must hold.

The core writes down what comes and goes along the timeline (`cpp/engines/ledger.hpp`): values from when they are made
until the last that reads or saves them is done, each once on a device; their gradients; what ops keep and work with;
buckets. Gradients of parameters begin with backward and last until the update, as after `zero_grad(set_to_none=True)`.
Parameters, the optimizer's states and the libraries' workspaces are there all along. The bound adds all of this up
whatever the order; the peak follows the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .. import _core
    from ..topology import Device, Topology

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
TEMPORARIES = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1}  # Adam takes the roots of all its states at once
CONTENTS = (
    "activations",
    "gradients",
    "activation gradients",
    "buckets",
    "work",
    "gathered weights",
)  # of a holding, by number
# cuBLAS' workspace of one handle: PyTorch's default on Hopper and later, and before. Forward and backward run on a
# thread each, and each thread has its handle.
WORKSPACE, OLD_WORKSPACE, HANDLES = 32 << 20, (4096 * 2 + 16 * 8) << 10, 2


def bound_of(native: _core.TaskGraph | _core.Simulator, topology: Topology, optimizer: str) -> np.ndarray:
    """Bytes by device that no order of the tasks can pass."""
    bound: np.ndarray = native.memory_bound(states_of(optimizer) + temporaries_of(optimizer)) + workspaces_of(topology)
    return bound


def states_of(optimizer: str) -> int:
    """How many numbers an optimizer keeps for each element."""
    return STATES.get(optimizer, 2)


def temporaries_of(optimizer: str) -> int:
    """How many more it works on while it updates."""
    return TEMPORARIES.get(optimizer, 1)


def workspace_of(device: Device) -> int:
    """Bytes that libraries take on a device for themselves."""
    if device.kind.startswith("cpu"):
        return 0
    return HANDLES * (WORKSPACE if device.kind.startswith(("h100", "h200", "b200")) else OLD_WORKSPACE)


def workspaces_of(topology: Topology) -> np.ndarray:
    return np.array([workspace_of(device) for device in topology.devices], np.int64)


@dataclass(frozen=True)
class Memory:
    """Bytes by device. `bound` is the sum of the others: what no order of the same tasks can pass."""

    parameters: np.ndarray
    gathered: np.ndarray  # of those, that come and go: of each device no more than a share stays
    gradients: np.ndarray
    states: np.ndarray
    saved: np.ndarray  # of all microbatches that may be there at once
    made: np.ndarray  # outputs, and what messages bring, of as many
    transient: np.ndarray  # of the largest task, and what the update works on
    buckets: np.ndarray
    workspace: np.ndarray
    bound: np.ndarray
    peak: np.ndarray  # along the timeline


@dataclass(frozen=True)
class Filling:
    """What lies on a device when it holds most: bytes by kind, and by op the activations and gradients, the largest
    first."""

    device: int
    peak: int
    kinds: dict[str, int]
    ops: dict[int, int]


class Ledger:
    """What is held along a timeline, beside parameters and states."""

    def __init__(self, native: _core.TaskGraph, timeline: _core.Timeline, optimizer: str, count: int) -> None:
        columns = native.holdings(timeline, temporaries_of(optimizer))
        self.device, self.content, self.op, self.since, self.until, self.bytes = columns
        self.count = count

    @cached_property
    def _curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Device, time and the bytes that lie there from then on, for all that comes or goes; at one time, what goes
        goes first. Everything goes in the end, so that each device begins with nothing."""
        devices, times = np.tile(self.device.astype(np.int64), 2), np.concatenate([self.since, self.until])
        sizes = np.concatenate([self.bytes, -self.bytes])
        order = np.lexsort((sizes, times, devices))
        return devices[order], times[order], sizes[order].cumsum()

    def peak_at(self, device: int) -> tuple[int, int]:
        """The most that lies there at a time, and when."""
        devices, times, held = self._curve
        begin, end = np.searchsorted(devices, (device, device + 1))
        if begin == end:
            return 0, 0
        top = int(begin + held[begin:end].argmax())
        return int(held[top]), int(times[top])

    @property
    def peak(self) -> np.ndarray:
        return np.array([self.peak_at(device)[0] for device in range(self.count)], np.int64)

    def filling(self, device: int, memory: Memory) -> Filling:
        """What fills a device at its peak."""
        _, when = self.peak_at(device)
        there = (self.device == device) & (self.since <= when) & (when < self.until)
        held = np.bincount(self.content[there], self.bytes[there], len(CONTENTS)).astype(np.int64)
        kinds = {"parameters": int(memory.parameters[device]), "optimizer state": int(memory.states[device])}
        kinds |= {name: int(size) for name, size in zip(CONTENTS, held)}
        kinds["workspace"] = int(memory.workspace[device]) + kinds.pop("work")
        there &= self.op >= 0
        by_op = np.bincount(self.op[there], self.bytes[there]).astype(np.int64)
        ops = {int(op): int(by_op[op]) for op in np.argsort(-by_op, kind="stable") if by_op[op]}
        shown = {kind: size for kind, size in sorted(kinds.items(), key=lambda item: -item[1]) if size}
        return Filling(device, int(memory.peak[device]), shown, ops)


def memory_of(native: _core.TaskGraph, topology: Topology, ledger: Ledger, optimizer: str) -> Memory:
    """The memory of a played task graph."""
    parameters, gathered, gradients, updated, saved, made, buckets, transient = native.memory()
    states, workspace = updated * states_of(optimizer), workspaces_of(topology)
    transient = transient + updated * temporaries_of(optimizer)
    peak = parameters + states + workspace + ledger.peak
    bound = bound_of(native, topology, optimizer)
    return Memory(parameters, gathered, gradients, states, saved, made, transient, buckets, workspace, bound, peak)
