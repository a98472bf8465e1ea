"""When a rank is done with what it has: after the last event of its program that reads a value, or adds to its
gradient, both can go; and what a sum of gradients was made of can go when it has ended, as simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from .keys import Key, Payload, Received, Share, State, Total, Update
from .plan import Combine, Event, Round, Run, Sync
from .segments import Segment


def last_uses(program: Sequence[Event], segments: Sequence[Segment], kept: Collection[Key]) -> dict[int, list[Key]]:
    """What goes after each event, by the event's number. Parameters and buffers, their next values and what is `kept`
    stay."""
    last = {key: number for number, event in enumerate(program) for key in _used(event, segments)}
    found: dict[int, list[Key]] = defaultdict(list)
    for key, number in last.items():
        if not isinstance(key, State | Update) and key not in kept:
            found[number].append(key)
    return dict(found)


def ended_sums(
    program: Sequence[Event], start: Callable[[Run], float | None], end: Callable[[Sync], float]
) -> dict[int, int]:
    """How many of a program's reduce-scatters, the first ones, have ended when a run begins, by the run's number; only
    those runs are there before which one ends."""
    ends: list[float] = []
    found: dict[int, int] = {}
    ended = 0
    for number, event in enumerate(program):
        if isinstance(event, Sync) and event.scatters:
            ends.append(end(event))
        elif isinstance(event, Run) and ended < len(ends):
            now, before = start(event), ended
            while now is not None and ended < len(ends) and ends[ended] <= now:
                ended += 1
            if ended > before:
                found[number] = ended
    return found


def _used(event: Event, segments: Sequence[Segment]) -> Iterator[Key]:
    match event:
        case Run():
            segment = segments[event.segment]
            yield from (*segment.takes, *segment.gives)
            yield from (Total(key.op, key.group) for key in segment.gives if isinstance(key, Share))
        case Round():
            for flow in [send.flow for send in event.sends] + [receive.flow for receive in event.receives]:
                yield from (Payload(flow), Received(flow))
        case Combine():
            yield Share(event.op, event.group)
            yield Total(event.op, event.group)
        case _:
            pass
