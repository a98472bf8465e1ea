"""Why an iteration takes as long as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _core


def critical_path(native: _core.TaskGraph, timeline: _core.Timeline) -> list[int]:
    """Walk back from the last task: to what it waited for, or to what held the resource that it wanted."""
    rows, resources = native.hold_rows.tolist(), native.hold_resources.tolist()
    starts, durations = timeline.hold_start.tolist(), native.hold_durations.tolist()
    ready, end = timeline.ready.tolist(), timeline.end.tolist()
    freed: dict[Any, int] = {(r, s + d): row for row, r, s, d in zip(rows, resources, starts, durations)}
    last: dict[int, int] = {}  # row -> the hold that ends last
    for hold, row in enumerate(rows):
        if row not in last or starts[hold] + durations[hold] > starts[last[row]] + durations[last[row]]:
            last[row] = hold
    task: int = max(range(len(end)), key=lambda i: (end[i], -i))
    path = [task]
    while True:
        hold = last.get(task, -1)
        if hold >= 0 and starts[hold] > ready[task]:
            task = freed[resources[hold], starts[hold]]
        else:
            before = [i for i in native.task(task).after if end[i] == ready[task]]
            if not before:
                return path[::-1]
            task = before[0]
        path.append(task)
