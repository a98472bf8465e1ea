"""Algorithm 1 of the paper in plain Python, written for reading: what the compiled core is held against.

    ready    = max end of the predecessors, or 0
    a host launches a task once it has launched all that its device serves before, from 0 on; where a task takes its
               host some time but its device none, it does not wait for the device
    a resource serves tasks in increasing (ready, key): start there = max(ready, launched, when the resource is free)
    end      = max (start + duration) over the holds + latency;  start = min start over the holds

A task without holds starts when ready and ends after its latency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    key: int
    holds: tuple[tuple[int, int], ...]  # (resource, duration)
    latency: int
    predecessors: tuple[int, ...]  # places in the list
    launches: tuple[int, ...] = ()  # what the host of each hold's resource takes, 0 for those that have none


@dataclass(frozen=True, slots=True)
class ReferenceTimes:
    ready: int
    start: int
    end: int
    hold_starts: tuple[int, ...]


def play_reference(
    tasks: Sequence[ReferenceTask], free: Mapping[int, int] | None = None, launched: Mapping[int, int] | None = None
) -> list[ReferenceTimes]:
    """Return the times of each task, in the order of the list, where resources are free and hosts have launched all
    before by some time, else from the start on; raises ValueError on a cycle or a task without time."""
    for place, task in enumerate(tasks):
        if max([duration for _, duration in task.holds], default=0) + task.latency < 1:
            raise ValueError(f"task {place} takes no time")

    readers: dict[int, list[int]] = {place: [] for place in range(len(tasks))}
    for place, task in enumerate(tasks):
        for predecessor in set(task.predecessors):
            readers[predecessor].append(place)

    free, launched = dict(free or {}), dict(launched or {})
    done: dict[int, ReferenceTimes] = {}
    queue = [(0, task.key, place) for place, task in enumerate(tasks) if not task.predecessors]
    heapify(queue)
    while queue:
        ready, _, place = heappop(queue)
        hold_starts = []
        begin = ready
        for (resource, _), launch in zip(tasks[place].holds, tasks[place].launches):
            if launch:
                launched[resource] = launched.get(resource, 0) + launch
                begin = max(begin, launched[resource])
        launches = tasks[place].launches or (0,) * len(tasks[place].holds)
        for (resource, duration), launch in zip(tasks[place].holds, launches):
            only_launched = launch > 0 and duration == 0
            hold_starts.append(begin if only_launched else max(begin, free.get(resource, 0)))
            if not only_launched:
                free[resource] = hold_starts[-1] + duration
        ends = [start + duration for start, (_, duration) in zip(hold_starts, tasks[place].holds)]
        end = max(ends, default=ready) + tasks[place].latency
        done[place] = ReferenceTimes(ready, min(hold_starts, default=ready), end, tuple(hold_starts))
        for reader in readers[place]:
            predecessors = tasks[reader].predecessors
            if all(predecessor in done for predecessor in predecessors):
                heappush(queue, (max(done[p].end for p in predecessors), tasks[reader].key, reader))

    if len(done) < len(tasks):
        raise ValueError(f"tasks {sorted(readers.keys() - done.keys())} wait for one another")
    return [done[place] for place in range(len(tasks))]
