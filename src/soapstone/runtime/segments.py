"""Cut a device's forward tasks into segments: runs of tasks that become one GraphModule and one autograd graph.

A segment ends before a task that takes something new from another device, and after one that gives something to
another. So its backward, the same tasks the other way round, waits for other devices only before it begins, and they
for it only once it is done.

Ops that are recomputed are segments of their own, together with the first after them that is not: of these only what
they take and give stays, and autograd runs them again when backward needs what is between. Weights that are gathered
for some of them do not cut such a segment: what they make would stay.

A compiled backward hands out its gradients only at its end. So where segments are compiled, a long one is cut before
the op whose backward completes enough gradients, that their sums may travel while the rest of backward runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .keys import FromOthers, Key, Received, State, ToOthers, Total, Update
from .placement import Placement, Task


@dataclass(eq=False)
class Segment:
    """What a device does in one go, of what it takes, and what it gives."""

    device: int
    tasks: list[Task] = field(default_factory=list)
    takes: list[Key] = field(default_factory=list)
    gives: list[Key] = field(default_factory=list)
    recompute: bool = False


def cut_segments(placement: Placement, most_bytes: int | None = None) -> list[Segment]:
    """The segments of all devices; with `most_bytes`, also cut where that many bytes of gradients are complete."""
    segments = [
        segment
        for device, own in placement.tasks.items()
        for segment in _cut(placement, device, own, _gradient_cuts(placement, device, own, most_bytes))
    ]
    _drop_unread(placement, segments)
    return segments


def _gradient_cuts(placement: Placement, device: int, tasks: list[Task], most_bytes: int | None) -> set[int]:
    """Where to cut, by the tasks before which a segment begins: backward goes through them from the last to the first,
    and completes a parameter's gradient at the first that reads it."""
    if most_bytes is None:
        return set()
    sizes, cuts, complete = placement.synced_bytes(device), set[int](), 0
    first = {key.tensor: i for i in reversed(range(len(tasks))) for key in placement.reads(tasks[i], device)
             if isinstance(key, State)}  # fmt: skip
    completed: dict[int, int] = defaultdict(int)
    for tensor, i in first.items():
        completed[i] += sizes.get(tensor, 0)
    for i in reversed(range(1, len(tasks))):
        complete += completed[i]
        if complete >= most_bytes:
            cuts.add(i)
            complete = 0
    return cuts


def _cut(placement: Placement, device: int, tasks: list[Task], cuts: set[int]) -> Iterator[Segment]:
    segment = Segment(device)
    made: set[Key] = set()
    ended = False
    for i, task in enumerate(tasks):
        reads = [key for key in dict.fromkeys(placement.reads(task, device)) if key not in made]
        again = placement.recompute[task.op]
        goes_on = bool(segment.tasks) and placement.recompute[segment.tasks[-1].op]
        turns = not goes_on and (again or segment.recompute)
        awaited = Received | Total if goes_on else FromOthers  # a stretch waits for all of its weights at once
        fresh = any(isinstance(key, awaited) and key not in segment.takes for key in reads)
        if segment.tasks and (ended or fresh or turns or i in cuts):
            yield segment
            segment, made = Segment(device), set()
            reads = list(dict.fromkeys(placement.reads(task, device)))
        makes = list(placement.makes(task, device))
        segment.tasks.append(task)
        segment.recompute |= again
        segment.takes += [key for key in reads if key not in segment.takes and key not in made]
        segment.gives += makes
        made.update(makes)
        ended = any(isinstance(key, ToOthers) for key in makes)
    if segment.tasks:
        yield segment


def _drop_unread(placement: Placement, segments: list[Segment]) -> None:
    """Drop from what segments make that which nothing outside of them reads."""
    wanted: dict[int, set[Key]] = defaultdict(set)
    for segment in segments:
        wanted[segment.device].update(segment.takes)
    for segment in segments:
        read = wanted[segment.device] | placement.kept
        segment.gives = [k for k in segment.gives if isinstance(k, ToOthers | Update) or k in read]
