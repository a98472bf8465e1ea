"""Where the time of each device goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..simulator import COMMUNICATION, Simulation


@dataclass(frozen=True)
class Breakdown:
    """Nanoseconds by device, which add up to the iteration. A device that has nothing to compute sees communication
    while the message or sum that it waits for is on its way, waits while others compute what it needs or, when all is
    there, for its host to launch it, and is idle once it has done all its work. A link that is exposed holds its
    devices: that is communication, too."""

    compute: list[int]
    communication: list[int]
    waiting: list[int]
    launching: list[int]
    idle: list[int]


def breakdown_of(sim: Simulation) -> Breakdown:
    count = sim.topology.num_devices
    compute, communication, waiting, launching = ([0] * count for _ in range(4))
    free = [0] * count
    moves = np.isin(sim.tasks["kind"], COMMUNICATION)
    for device, row, start, end in _served(sim):
        ready = min(max(int(sim.tasks["ready"][row]), free[device]), max(start, free[device]))
        exposed = _moving(sim, moves, row, free[device], ready)
        communication[device] += exposed
        waiting[device] += ready - free[device] - exposed
        launching[device] += max(start - ready, 0)
        (communication if moves[row] else compute)[device] += end - start
        free[device] = end
    return Breakdown(compute, communication, waiting, launching, [sim.makespan_ns - time for time in free])


def _served(sim: Simulation) -> Iterator[tuple[int, int, int, int]]:
    """What keeps devices busy: (device, row, start, end), in the order of their starts."""
    resources, rows, durations = sim.native.hold_resources, sim.native.hold_rows, sim.native.hold_durations
    here = np.flatnonzero((resources < sim.topology.num_devices) & (durations > 0))
    starts = sim.timeline.hold_start[here]
    here = here[np.argsort(starts, kind="stable")]
    starts = sim.timeline.hold_start[here]
    yield from zip(resources[here].tolist(), rows[here].tolist(), starts.tolist(), (starts + durations[here]).tolist())


def _moving(sim: Simulation, moves: np.ndarray, row: int, since: int, until: int) -> int:
    """How long what made a task ready was on its way, in the time that the device had nothing else to do."""
    if until <= since:
        return 0
    ready, end, start = (sim.tasks[name] for name in ("ready", "end", "start"))
    last = next((i for i in sim.predecessors(row) if end[i] == ready[row]), None)
    if last is None or not moves[last]:
        return 0
    return max(min(until, int(end[last])) - max(since, int(start[last])), 0)
