"""Why an iteration takes as long as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _core


def critical_path(native: _core.TaskGraph, timeline: _core.Timeline) -> list[int]:
    """Walk back from the last task: to what it waited for, to what held the resource that it wanted, or to what its
    host had to launch before it."""
    rows, resources = native.hold_rows.tolist(), native.hold_resources.tolist()
    starts, durations = timeline.hold_start.tolist(), native.hold_durations.tolist()
    ready, end = timeline.ready.tolist(), timeline.end.tolist()
    freed: dict[Any, int] = {(r, s + d): row for row, r, s, d in zip(rows, resources, starts, durations)}
    launched_before = _launched_before(native, timeline)
    last: dict[int, int] = {}  # row -> the hold that ends last
    for hold, row in enumerate(rows):
        if row not in last or starts[hold] + durations[hold] > starts[last[row]] + durations[last[row]]:
            last[row] = hold
    task: int = max(range(len(end)), key=lambda i: (end[i], -i))
    path = [task]
    while True:
        hold = last.get(task, -1)
        if hold >= 0 and starts[hold] > ready[task]:
            before = freed.get((resources[hold], starts[hold]), launched_before.get(task))
            if before is None:
                return path[::-1]
            task = before
        else:
            ended = [i for i in native.task(task).after if end[i] == ready[task]]
            if not ended:
                return path[::-1]
            task = ended[0]
        path.append(task)


def _launched_before(native: _core.TaskGraph, timeline: _core.Timeline) -> dict[int, int]:
    """By row, what the same host launched just before."""
    hosts: dict[int, list[int]] = {}
    for row, resource, launch in zip(native.hold_rows, native.hold_resources, native.hold_launches):
        if launch:
            hosts.setdefault(int(row), []).append(int(resource))
    found, latest = dict[int, int](), dict[int, int]()
    for row in timeline.order.tolist():
        for host in hosts.get(row, ()):
            if host in latest:
                found[row] = latest[host]
            latest[host] = row
    return found
