"""Why an iteration takes as long as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .. import _core


def critical_path(native: _core.TaskGraph, timeline: _core.Timeline) -> list[int]:
    """Walk back from the last task: to what it waited for, to what held the resource that it wanted, or to what its
    host had to launch before it."""
    ready, end = timeline.ready, timeline.end
    holds = _Holds(native, timeline)
    task = int(end.argmax())
    path = [task]
    while True:
        hold = holds.last_of(task)
        if hold is not None and holds.starts[hold] > ready[task]:
            before = holds.freed_for(hold)
            if before is None:
                before = holds.launched_before(task)
        else:
            before = next((i for i in native.task(task).after if end[i] == ready[task]), None)
        if before is None:
            return path[::-1]
        task = before
        path.append(task)


class _Holds:
    """Who holds what and when, for questions about few of very many holds."""

    def __init__(self, native: _core.TaskGraph, timeline: _core.Timeline) -> None:
        self.rows = native.hold_rows  # increasing
        self.resources, self.starts = native.hold_resources, timeline.hold_start
        self.ends = self.starts + native.hold_durations
        self._by_end = _Sorted(self.resources, self.ends)
        self._launching = np.flatnonzero(native.hold_launches)
        self._places = np.empty(len(timeline.order), np.int64)  # of rows in the order of service
        self._places[timeline.order] = np.arange(len(timeline.order))
        self._launching_rows = self.rows[self._launching]
        self._launches = _Sorted(self.resources[self._launching], self._places[self._launching_rows])

    def last_of(self, task: int) -> int | None:
        """The hold of a task that ends last."""
        begin, end = np.searchsorted(self.rows, (task, task + 1))
        return None if begin == end else int(begin + self.ends[begin:end].argmax())

    def freed_for(self, hold: int) -> int | None:
        """The task that freed a resource when this one took it."""
        at = self._by_end.last_up_to(self.resources[hold], self.starts[hold])
        return None if at is None or self.ends[at] != self.starts[hold] else int(self.rows[at])

    def launched_before(self, task: int) -> int | None:
        """What a host of a task launched just before it."""
        found = None
        begin, end = np.searchsorted(self._launching_rows, (task, task + 1))
        for hold in self._launching[begin:end]:
            at = self._launches.last_up_to(self.resources[hold], self._places[task] - 1)
            found = found if at is None else int(self._launching_rows[at])
        return found


class _Sorted:
    """Times, or places in an order, of each resource, sorted to look one up."""

    def __init__(self, resources: np.ndarray, times: np.ndarray) -> None:
        self._width = int(times.max(initial=0)) + 1
        keys = resources.astype(np.int64) * self._width + times
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def last_up_to(self, resource: int, time: int) -> int | None:
        """The last of a resource's times that is not later; of equal ones the last."""
        first = int(resource) * self._width
        at = int(np.searchsorted(self._keys, first + int(time), "right")) - 1
        return int(self._order[at]) if at >= 0 and self._keys[at] >= first else None
