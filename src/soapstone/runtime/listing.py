"""A device's program in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .plan import Announce, Combine, Event, Gather, Plan, Receive, Round, Run, Send, Sync, tasks_of

MOST = 4  # names in a line


@dataclass(frozen=True, slots=True)
class Line:
    """One event: what it is, what of, with whom, how many bytes move, and when it starts in the simulation (s)."""

    kind: str
    what: str
    peers: tuple[int, ...]
    bytes: int
    start: float | None


def lines(plan: Plan, device: int) -> Iterator[Line]:
    """A line for each event, and for each message of a round."""
    for event in plan.program(device):
        if isinstance(event, Round):
            yield from _messages(plan, device, event)
        else:
            yield _line(plan, device, event)


def summary(plan: Plan, device: int, event: Event) -> Line:
    """One line for one event."""
    if not isinstance(event, Round):
        return _line(plan, device, event)
    found = _messages(plan, device, event)
    peers = tuple(sorted({peer for line in found for peer in line.peers}))
    what = shortened([f"{line.kind} {line.what}" for line in found])
    return Line("round", what, peers, sum(line.bytes for line in found), found[0].start)


def _messages(plan: Plan, device: int, event: Round) -> list[Line]:
    messages: list[Send | Receive] = [*event.sends, *event.receives]
    return [_line(plan, device, message) for message in messages]


def _line(plan: Plan, device: int, event: Event | Send | Receive) -> Line:
    match event:
        case Round():
            return summary(plan, device, event)
        case Run():
            return _run(plan, event)
        case Announce():
            return Line("announce", "the loss", (), 0, None)
    task = plan.simulation.tasks[event.row]
    start, size = float(task["start"]) * 1e-9, int(task["bytes"])
    match event:
        case Send():
            return Line("send", _flow(plan, event), (event.target,), size, start)
        case Receive():
            return Line("receive", _flow(plan, event), (event.source,), size, start)
        case Combine():
            what = f"{'gradient of ' if event.backward else ''}{plan.placement.graph.ops[event.op].name}"
            return Line("combine", what, _others(event.devices, device), size, start)
        case Sync() | Gather():
            names = dict.fromkeys(plan.placement.graph.tensors[tensor].name for tensor, _ in event.pieces)
            what = "gather" if isinstance(event, Gather) else "scatter" if event.scatters else "sync"
            return Line(what, shortened(list(names)), _others(event.devices, device), size, start)


def _others(devices: Sequence[int], device: int) -> tuple[int, ...]:
    return tuple(other for other in devices if other != device)


def _run(plan: Plan, event: Run) -> Line:
    tasks, ops = tasks_of(plan, event), plan.placement.graph.ops
    names = [f"{ops[task.op].name}[{task.part}]" + (" finish" if task.finish else "") for task in tasks]
    return Line("backward" if event.backward else "forward", shortened(names), (), 0, plan.start(event))


def _flow(plan: Plan, event: Send | Receive) -> str:
    flow = plan.placement.flows[event.flow]
    name = plan.placement.graph.ops[plan.placement.producer[flow.tensor]].name
    return f"{'gradient of ' if event.backward else ''}{name}[{flow.part}]"


def shortened(names: list[str]) -> str:
    """The first and the last of many."""
    if len(names) <= MOST:
        return ", ".join(names)
    return f"{', '.join(names[: MOST - 1])}, ... {names[-1]} ({len(names)})"
