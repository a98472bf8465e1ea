"""From a simulation to one device's program: the segments that it runs, and what it says to whom.

All devices follow one order of everything that happens anywhere: the simulated one, as far as segments allow, which do
several tasks in one go. So each message finds its receiver waiting for it, and no one waits in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..simulator import BACKWARD, COMBINE, FORWARD, GATHER, SYNC, TRANSFER, Simulation
from .ordering import Order, Ordering
from .placement import Placement, Task
from .rounds import cut_rounds
from .segments import cut_segments
from .transports import Transport


@dataclass(frozen=True, slots=True)
class Run:
    """Run a segment, or take its gradients."""

    segment: int
    backward: bool
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    row: int
    flow: int
    target: int
    backward: bool
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Receive:
    row: int
    flow: int
    source: int
    backward: bool
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """This device's messages of one round, which go as one group."""

    number: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]

    def forward(self) -> Round | None:
        """Those of them that are not gradients."""
        sends = tuple(message for message in self.sends if not message.backward)
        receives = tuple(message for message in self.receives if not message.backward)
        return Round(self.number, sends, receives) if sends or receives else None


@dataclass(frozen=True, slots=True)
class Combine:
    """Make the partials of a group whole; backward: the gradients of what they became."""

    row: int
    op: int
    group: int
    devices: tuple[int, ...]
    backward: bool
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """Sum the gradients of parameter pieces over their holders; `scatters`: each is left with its share."""

    row: int
    pieces: tuple[tuple[int, int], ...]  # (parameter, piece)
    devices: tuple[int, ...]
    scatters: bool


@dataclass(frozen=True, slots=True)
class Gather:
    """Make parameter pieces whole on their holders, of each one's share; `first` is its row in the first microbatch."""

    row: int
    pieces: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]
    backward: bool
    first: int
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every rank the loss."""


Event = Run | Round | Combine | Sync | Gather | Announce


class Plan:
    """What all devices do: `rows` are the tasks in the simulated order, `order` is what rank 0 made of them; None: make
    it here. `keep_all`: what ops make stays, to be looked at. `most_bytes` of gradients are complete at the end of a
    segment's backward, or a little more."""

    def __init__(
        self,
        simulation: Simulation,
        rows: Sequence[int],
        num_ranks: int,
        order: Order | None = None,
        *,
        keep_all: bool = False,
        most_bytes: int | None = None,
    ) -> None:
        self.simulation = simulation
        self.placement = Placement(simulation, rows, keep_all)
        self.segments = cut_segments(self.placement, most_bytes)
        self.order = Ordering(self.placement, self.segments, num_ranks, rows).result() if order is None else order

    @cached_property
    def starts(self) -> dict[tuple[int, int, bool, bool, int], float]:
        """When compute tasks start in the simulation, in seconds, by (op, part, finish, backward, microbatch)."""
        rows = self.simulation.tasks
        tasks = ((row, self.simulation.native.task(row)) for row in range(len(rows)))
        return {
            (t.op, t.part, t.finish, t.backward, t.microbatch): float(rows[row]["start"]) * 1e-9
            for row, t in tasks
            if t.kind in (FORWARD, BACKWARD)
        }

    def start(self, run: Run) -> float | None:
        """When a run starts in the simulation, in seconds; None where it only hands something on."""
        tasks = self.segments[run.segment].tasks  # of which some may have no backward
        keys = ((task.op, task.part, task.finish, run.backward, run.microbatch) for task in tasks)
        return min((self.starts[key] for key in keys if key in self.starts), default=None)

    def end(self, sync: Sync) -> float:
        """When a sum of gradients ends in the simulation, in seconds."""
        return float(self.simulation.tasks[sync.row]["end"]) * 1e-9

    @cached_property
    def rounds(self) -> dict[int, int]:
        """The round of each message, by its row."""
        return cut_rounds(self.order, self.placement, [segment.device for segment in self.segments])

    def program(self, device: int) -> list[Event]:
        return list(self._grouped(device))

    def forward_program(self, device: int) -> list[Event]:
        """What a device does where nobody wants gradients."""
        found: list[Event] = []
        for event in self.program(device):
            if isinstance(event, Round):
                found += [forward] if (forward := event.forward()) is not None else []
            elif not isinstance(event, Sync | Announce) and not event.backward:
                found.append(event)
        return found

    def _grouped(self, device: int) -> Iterator[Event]:
        """A device's events, its messages of each round together."""
        messages: list[Send | Receive] = []
        for node in self.order:
            event = self._event(*node, device)
            if messages and event is not None and self._ends_round(messages, event):
                yield self._round(messages)
                messages = []
            if isinstance(event, Send | Receive):
                messages.append(event)
            elif event is not None:
                yield event
        if messages:
            yield self._round(messages)

    def _ends_round(self, messages: list[Send | Receive], event: Event | Send | Receive) -> bool:
        if not isinstance(event, Send | Receive):
            return True
        return self.rounds[event.row] != self.rounds[messages[0].row]

    def _round(self, messages: list[Send | Receive]) -> Round:
        sends = tuple(message for message in messages if isinstance(message, Send))
        receives = tuple(message for message in messages if isinstance(message, Receive))
        return Round(self.rounds[messages[0].row], sends, receives)

    def _event(self, what: str, index: int, microbatch: int, device: int) -> Event | Send | Receive | None:
        if what == "loss":
            return Announce()
        if what != "row":
            return Run(index, what == "backward", microbatch) if self.segments[index].device == device else None
        task = self.simulation.native.task(index)
        if device not in task.devices:
            return None
        if task.kind == COMBINE:
            return Combine(index, task.op, task.part, tuple(task.devices), task.backward, microbatch)
        if task.kind == SYNC:
            return Sync(index, tuple(task.pieces), tuple(task.devices), task.is_half)
        if task.kind == GATHER:
            return Gather(index, tuple(task.pieces), tuple(task.devices), task.backward, task.first, microbatch)
        source, target = task.devices
        if device == source:
            return Send(index, task.flow, target, task.backward, microbatch)
        return Receive(index, task.flow, source, task.backward, microbatch)

    def pairs(self) -> set[tuple[int, int]]:
        """Every two devices that exchange messages."""
        return {
            (min(task.devices), max(task.devices))
            for what, index, _ in self.order
            if what == "row" and (task := self.simulation.native.task(index)).kind == TRANSFER
        }

    def meetings(self) -> dict[tuple[int, ...], int]:
        """Every set of devices that meets for an all-reduce, and the bytes that it sums."""
        found: dict[tuple[int, ...], int] = defaultdict(int)
        native = self.simulation.native
        for what, index, _ in self.order:
            if what == "row" and (task := native.task(index)).kind != TRANSFER:
                found[tuple(task.devices)] += task.bytes
        return dict(found)


def open_connections(plan: Plan, ranks: Sequence[int], transport: Transport) -> None:
    """Connect all ranks that a plan lets talk; `ranks` has the rank of each device."""
    pairs = [(min(ranks[a], ranks[b]), max(ranks[a], ranks[b])) for a, b in sorted(plan.pairs())]
    transport.open(pairs, {tuple(ranks[d] for d in devices): n for devices, n in plan.meetings().items()})


def tasks_of(plan: Plan, event: Run) -> list[Task]:
    """The tasks that a run stands for, in the order in which it does them."""
    tasks = plan.segments[event.segment].tasks
    return tasks[::-1] if event.backward else tasks
