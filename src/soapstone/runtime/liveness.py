"""When a rank is done with what it has: after the last event of its program that reads a value, or adds to its
gradient, both can go; and what a sum of gradients was made of can go when it has ended, as simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from .keys import Key, Payload, Received, Share, State, Total, Update
from .plan import Combine, Event, Receive, Round, Run, Send, Sync
from .segments import Segment

Owned = tuple[int, Key]  # a microbatch, and something of it


def last_uses(program: Sequence[Event], segments: Sequence[Segment], kept: Collection[Key]) -> dict[int, list[Owned]]:
    """What goes after each event, by the event's number. Parameters and buffers, their next values and what is `kept`
    stay."""
    last = {owned: number for number, event in enumerate(program) for owned in _used(event, segments)}
    found: dict[int, list[Owned]] = defaultdict(list)
    for (microbatch, key), number in last.items():
        if not isinstance(key, State | Update) and key not in kept:
            found[number].append((microbatch, key))
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


def _used(event: Event, segments: Sequence[Segment]) -> Iterator[Owned]:
    match event:
        case Run():
            segment = segments[event.segment]
            totals = [Total(key.op, key.group) for key in segment.gives if isinstance(key, Share)]
            yield from ((event.microbatch, key) for key in (*segment.takes, *segment.gives, *totals))
        case Round():
            messages: list[Send | Receive] = [*event.sends, *event.receives]
            for message in messages:
                yield message.microbatch, Payload(message.flow)
                yield message.microbatch, Received(message.flow)
        case Combine():
            yield event.microbatch, Share(event.op, event.group)
            yield event.microbatch, Total(event.op, event.group)
        case _:
            pass
