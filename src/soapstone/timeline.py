"""A timeline from a list of tasks written by hand, played by the same engine as a simulation.

    tasks = [Task("a", holds={"gpu0": 3}), Task("b", holds={"gpu1": 2}, after=["a"])]
    play(tasks)["b"] == Times(ready=3, start=3, end=5)

`cpp/timeline.hpp` states the equations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate

import numpy as np

from . import _core
from .errors import GraphError


@dataclass(frozen=True, slots=True)
class Task:
    """A named task: how long it holds each resource, and the tasks that it comes after (times in ns).

    Where two tasks are ready at the same time the lower key goes first; without a key it is the place in the list.
    """

    name: str
    _: KW_ONLY
    holds: Mapping[str, int] = field(default_factory=dict, hash=False)
    after: Sequence[str] = ()
    latency: int = 0
    key: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", tuple(self.after))
        if min((*self.holds.values(), self.latency)) < 0:
            raise GraphError(f"task {self.name!r}: has a negative time; all times are at least 0 ns")
        if max(self.holds.values(), default=0) + self.latency < 1:
            raise GraphError(f"task {self.name!r}: takes no time; give it a hold or a latency of at least 1 ns")
        if self.key is not None and not 0 <= self.key < 2**64:
            raise GraphError(
                f"task {self.name!r}: key {self.key} is not a whole number of 64 bits; choose a smaller one"
            )


@dataclass(frozen=True, slots=True)
class Times:
    """When a task's predecessors are done, when its first resource takes it up, when it is over (ns)."""

    ready: int
    start: int
    end: int


def play(tasks: Iterable[Task]) -> dict[str, Times]:
    """Return the times of each task by name; raises GraphError on unknown or repeated names, and on a cycle."""
    rows = _sort_by_key(list(tasks))
    row_of = {task.name: row for row, (_, task) in enumerate(rows)}
    _check_predecessors([task for _, task in rows])
    names = list(dict.fromkeys(name for _, task in rows for name in task.holds))
    resource_of = {name: resource for resource, name in enumerate(names)}
    timeline = _core.play(
        np.array([key for key, _ in rows], np.uint64),
        np.array([task.latency for _, task in rows], np.int64),
        _begin(len(task.holds) for _, task in rows),
        np.array([resource_of[name] for _, task in rows for name in task.holds], np.int32),
        np.array([duration for _, task in rows for duration in task.holds.values()], np.int64),
        _begin(len(task.after) for _, task in rows),
        np.array([row_of[name] for _, task in rows for name in task.after], np.int32),
        len(names),
    )
    columns = zip(timeline.ready.tolist(), timeline.start.tolist(), timeline.end.tolist())
    return {task.name: Times(*times) for (_, task), times in zip(rows, columns)}


def _sort_by_key(tasks: Sequence[Task]) -> list[tuple[int, Task]]:
    owner: dict[int, Task] = {}
    names = set()
    for place, task in enumerate(tasks):
        key = place if task.key is None else task.key
        if task.name in names:
            raise GraphError(f"two tasks are named {task.name!r}; rename one")
        if key in owner:
            raise GraphError(f"tasks {owner[key].name!r} and {task.name!r} have the key {key}; give each its own")
        names.add(task.name)
        owner[key] = task
    return sorted(owner.items())


def _check_predecessors(tasks: Sequence[Task]) -> None:
    names = {task.name for task in tasks}
    for task in tasks:
        for name in task.after:
            if name not in names:
                raise GraphError(
                    f"task {task.name!r}: comes after {name!r}, which is not in the list; add or rename it"
                )
    try:
        TopologicalSorter({task.name: task.after for task in tasks}).prepare()
    except CycleError as error:
        cycle = " before ".join(map(repr, error.args[1]))
        raise GraphError(f"tasks wait for one another: {cycle}; remove one of these from `after`") from None


def _begin(lengths: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([0, *accumulate(lengths)], np.int32)
