"""When a rank is done with what it has: after the last event of its program that reads a value, or adds to its
gradient, both can go; and what a sum of gradients was made of can go when it has ended, as simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from .keys import Key, Payload, Received, Share, State, Total, Update
from .plan import Combine, Event, Round, Run, Sync
from .segments import Segment

Owned = tuple[int, Key]  # a microbatch, and something of it


def last_uses(
    program: Sequence[Event], segments: Sequence[Segment], kept: Collection[Key], loss: int
) -> dict[int, list[Owned]]:
    """What goes after each event, by the event's number. Parameters and buffers, their next values and what is `kept`
    stay. What goes to others is not read again: its gradient comes from them; but for shares of the op `loss`."""
    last = {owned: number for number, event in enumerate(program) for owned in _used(event, segments, loss)}
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


def _used(event: Event, segments: Sequence[Segment], loss: int) -> Iterator[Owned]:
    match event:
        case Run():
            segment = segments[event.segment]
            totals = [Total(key.op, key.group) for key in segment.gives if isinstance(key, Share)]
            gives = [key for key in segment.gives if not (event.backward and _is_gone(key, loss))]
            yield from ((event.microbatch, key) for key in (*segment.takes, *gives, *totals))
        case Round():
            for send in event.sends:
                yield send.microbatch, Received(send.flow) if send.backward else Payload(send.flow)
            yield from (
                (receive.microbatch, Received(receive.flow)) for receive in event.receives if not receive.backward
            )
        case Combine():
            if not event.backward:
                yield event.microbatch, Share(event.op, event.group)
            yield event.microbatch, Total(event.op, event.group)
        case _:
            pass


def _is_gone(key: Key, loss: int) -> bool:
    """Whether backward of what gave it does not read it."""
    return isinstance(key, Payload) or (isinstance(key, Share) and key.op != loss)
