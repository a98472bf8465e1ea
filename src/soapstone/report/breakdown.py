"""Where the time of each device goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..simulator import COMBINE, SYNC, TRANSFER, Simulation

_MOVES = (TRANSFER, COMBINE, SYNC)


@dataclass(frozen=True)
class Breakdown:
    """Nanoseconds by device, which add up to the iteration. A device that has nothing to compute sees communication
    while the message or sum that it waits for is on its way, waits while others compute what it needs, and is idle once
    it has done all its work. A link that does not overlap holds its devices: that is communication, too."""

    compute: list[int]
    communication: list[int]
    waiting: list[int]
    idle: list[int]


def breakdown_of(sim: Simulation) -> Breakdown:
    count = sim.topology.num_devices
    compute, communication, waiting, idle = ([0] * count for _ in range(4))
    for device in range(count):
        free = 0
        for row, start, end in _served(sim, device):
            exposed = _moving(sim, row, free, start)
            communication[device] += exposed
            waiting[device] += max(start - free, 0) - exposed
            busy = communication if sim.tasks["kind"][row] in _MOVES else compute
            busy[device] += end - start
            free = end
        idle[device] = sim.makespan_ns - free
    return Breakdown(compute, communication, waiting, idle)


def _served(sim: Simulation, device: int) -> Iterator[tuple[int, int, int]]:
    """What holds a device: (row, start, end), in order."""
    native = sim.native
    here = native.hold_resources == device
    starts = sim.timeline.hold_start[here]
    order = np.argsort(starts, kind="stable")
    rows, begins = native.hold_rows[here][order], starts[order]
    ends = begins + native.hold_durations[here][order]
    yield from zip(rows.tolist(), begins.tolist(), ends.tolist())


def _moving(sim: Simulation, row: int, since: int, until: int) -> int:
    """How long what made a task ready was on its way, in the time that the device had nothing else to do."""
    if until <= since:
        return 0
    tasks = sim.tasks
    last = next((i for i in sim.predecessors(row) if tasks["end"][i] == tasks["ready"][row]), None)
    if last is None or tasks["kind"][last] not in _MOVES:
        return 0
    return max(min(until, int(tasks["end"][last])) - max(since, int(tasks["start"][last])), 0)
