"""What a rank did when, in a step that really ran."""

from __future__ import annotations

from dataclasses import dataclass

from .execute import WAIT, Executor, Span
from .listing import summary
from .plan import Run
from .transports import carried


@carried
@dataclass(frozen=True, slots=True)
class Happening:
    """Something that a rank did, from start to end in ns since the step began."""

    rank: int
    kind: str
    what: str
    start: int
    end: int
    bytes: int = 0


@carried
@dataclass(frozen=True)
class Record:
    """One rank's step: its events in order, and how much of it went by waiting."""

    happenings: list[Happening]
    idle: float


def recorded(executor: Executor, rank: int, spans: list[Span], begin: int, end: int) -> Record:
    """Name what happened. A segment that waits for what it takes has the wait inside of it: it is cut out."""
    waits = [(start, stop) for number, start, stop in spans if number == WAIT]
    busy = 0
    found = [Happening(rank, "wait", "", start - begin, stop - begin) for start, stop in waits if stop - start > 1000]
    for number, start, stop in spans:
        if number == WAIT:
            continue
        line = summary(executor.plan, executor.device, executor.program[number])
        inside = sum(max(0, min(stop, b) - max(start, a)) for a, b in waits)
        if isinstance(executor.program[number], Run):
            busy += stop - start - inside
            start = max([start, *(b for a, b in waits if a >= start and b <= stop)])
        found.append(Happening(rank, line.kind, line.what, start - begin, stop - begin, line.bytes))
    return Record(sorted(found, key=lambda h: h.start), max(0.0, 1 - busy / max(end - begin, 1)))
