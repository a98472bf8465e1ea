"""From a simulation to one device's program: the segments that it runs, and what it says to whom.

All devices follow one order of everything that happens anywhere: the simulated one, as far as segments allow, which do
several tasks in one go. So each message finds its receiver waiting for it, and no one waits in a circle.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..simulator import BACKWARD, COMBINE, FORWARD, SYNC, TRANSFER, Simulation
from .segments import Key, Layout, Segment, Task, cut_segments


@dataclass(frozen=True, slots=True)
class Run:
    """Run a segment, or take its gradients."""

    segment: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Send:
    row: int
    flow: int
    target: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Receive:
    row: int
    flow: int
    source: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Combine:
    """Make the partials of a group whole; backward: the gradients of what they became."""

    row: int
    op: int
    group: int
    devices: tuple[int, ...]
    backward: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """Sum the gradients of parameter pieces over their holders."""

    row: int
    pieces: tuple[tuple[int, int], ...]  # (parameter, piece)
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every rank the loss."""


Event = Run | Send | Receive | Combine | Sync | Announce
Order = list[tuple[str, int]]  # what happens anywhere: "forward" or "backward" of a segment, "row" of a task, "loss"


class Plan:
    """What all devices do: `rows` are the tasks in the simulated order, `order` is what rank 0 made of them; None: make
    it here. `keep_all`: what ops make stays, to be looked at."""

    def __init__(
        self,
        simulation: Simulation,
        rows: Sequence[int],
        num_ranks: int,
        order: Order | None = None,
        *,
        keep_all: bool = False,
    ) -> None:
        self.simulation, self.num_ranks = simulation, num_ranks
        self.layout = Layout(simulation, rows, keep_all)
        self.segments = cut_segments(self.layout)
        self.order = _Ordering(self, rows).result() if order is None else order

    @cached_property
    def loss_devices(self) -> set[int]:
        """The devices that have the loss."""
        return set(self.layout.devices[self.layout.loss_op])

    @cached_property
    def starts(self) -> dict[tuple[int, int, bool, bool], float]:
        """When compute tasks start in the simulation, in seconds, by (op, part, finish, backward)."""
        rows = self.simulation.tasks
        tasks = ((row, self.simulation.native.task(int(row))) for row in self.layout.order)
        return {
            (t.op, t.part, t.finish, t.backward): float(rows[row]["start"]) * 1e-9
            for row, t in tasks
            if t.kind in (FORWARD, BACKWARD)
        }

    def program(self, device: int) -> list[Event]:
        return [event for what, index in self.order if (event := self._event(what, index, device)) is not None]

    def forward_program(self, device: int) -> list[Event]:
        """What a device does where nobody wants gradients."""
        training = (Sync, Announce)
        return [e for e in self.program(device) if not isinstance(e, training) and not e.backward]

    def _event(self, what: str, index: int, device: int) -> Event | None:
        if what == "loss":
            return Announce()
        if what != "row":
            return Run(index, what == "backward") if self.segments[index].device == device else None
        task = self.simulation.native.task(index)
        if device not in task.devices:
            return None
        if task.kind == COMBINE:
            return Combine(index, task.op, task.part, tuple(task.devices), task.backward)
        if task.kind == SYNC:
            return Sync(index, tuple(task.pieces), tuple(task.devices))
        source, target = task.devices
        if device == source:
            return Send(index, task.flow, target, task.backward)
        return Receive(index, task.flow, source, task.backward)

    def meetings(self) -> dict[tuple[int, ...], int]:
        """Every set of devices that meets for an all-reduce, and the bytes that it sums."""
        found: dict[tuple[int, ...], int] = defaultdict(int)
        native = self.simulation.native
        for what, index in self.order:
            if what == "row" and (task := native.task(index)).kind != TRANSFER:
                found[tuple(task.devices)] += task.bytes
        return dict(found)


class _Ordering:
    """Everything that happens, and what it waits for."""

    def __init__(self, plan: Plan, rows: Sequence[int]) -> None:
        self.plan, self.layout, self.segments = plan, plan.layout, plan.segments
        self.native = plan.simulation.native
        self.rows, self.position = rows, {row: i for i, row in enumerate(rows)}
        self.maker: dict[tuple[int, Key], int] = {}
        self.takers: dict[tuple[int, Key], list[int]] = defaultdict(list)
        for number, segment in enumerate(self.segments):
            self.maker.update({(segment.device, key): number for key in segment.gives})
            for key in segment.takes:
                self.takers[segment.device, key].append(number)
        self.nodes: dict[tuple[str, int], tuple[float, str, int]] = {}
        self.after: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)

    def result(self) -> Order:
        self._collect()
        waits = dict.fromkeys(self.nodes, 0)
        followers: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
        for node in self.nodes:
            for before in set(self.after[node]) & self.nodes.keys():
                followers[before].append(node)
                waits[node] += 1
        ready = [(*self.nodes[node],) for node, count in waits.items() if not count]
        heapq.heapify(ready)
        order: Order = []
        while ready:
            _, what, index = heapq.heappop(ready)
            order.append((what, index))
            for node in followers[what, index]:
                waits[node] -= 1
                if not waits[node]:
                    heapq.heappush(ready, self.nodes[node])
        assert len(order) == len(self.nodes), "segments wait for one another"
        return order

    def _add(self, what: str, index: int, position: float, after: Iterator[tuple[str, int]]) -> None:
        self.nodes[what, index] = (position, what, index)
        self.after[what, index] += after

    def _collect(self) -> None:
        backward = self._backward_positions()
        for number, segment in enumerate(self.segments):
            last = max(self.position[task.row] for task in segment.tasks)
            self._add("forward", number, last, self._before_forward(segment))
            if any(self.layout.graph.ops[task.op].backward for task in segment.tasks):
                own = [backward.get((task.op, task.part, task.finish), 0) for task in segment.tasks]
                self._add("backward", number, max(own), self._before_backward(number))
        for row in self.rows:
            task = self.native.task(row)
            if task.kind in (TRANSFER, COMBINE, SYNC) and len(task.devices) > 1 and row != self.needless:
                self._add("row", row, self.position[row], self._before_row(row))
        if len(self.plan.loss_devices) < self.plan.num_ranks:
            key = self.layout.home(self.layout.graph.loss, 0)
            maker = self.maker.get((self.layout.loss_holder, key))
            made = self._arrival(key) if maker is None else ("forward", maker)
            self._add("loss", 0, self.nodes.get(made, (0.0, "", 0))[0], iter([made]))

    def _backward_positions(self) -> dict[tuple[int, int, bool], int]:
        found = {}
        for row in self.rows:
            task = self.native.task(row)
            if task.backward and task.kind not in (TRANSFER, COMBINE, SYNC):
                found[task.op, task.part, task.finish] = self.position[row]
        return found

    @cached_property
    def combines(self) -> dict[tuple[int, int, bool], int]:
        """The row of each combine among several devices, by (op, group, backward)."""
        tasks = ((row, self.native.task(row)) for row in self.rows)
        return {(t.op, t.part, t.backward): row for row, t in tasks if t.kind == COMBINE and len(t.devices) > 1}

    @cached_property
    def needless(self) -> int:
        """The row that would sum the loss's gradients: every device that has the loss can take them by itself."""
        return self.combines.get((self.layout.loss_op, 0, True), -1)

    def _arrival(self, key: Key) -> tuple[str, int]:
        """The task that brings what other devices give."""
        if key.what == "flow":
            return "row", self.layout.flows[key.number].forward
        return "row", self.combines[key.number, key.part, False]

    def _before_forward(self, segment: Segment) -> Iterator[tuple[str, int]]:
        for key in segment.takes:
            if key.what not in ("batch", "state"):
                maker = self.maker.get((segment.device, key))
                yield self._arrival(key) if maker is None else ("forward", maker)

    def _before_backward(self, number: int) -> Iterator[tuple[str, int]]:
        segment = self.segments[number]
        yield "forward", number
        for key in segment.gives:
            if key.what == "payload":
                yield "row", self.layout.flows[key.number].backward
            elif key.what == "share":
                yield "row", self.combines.get((key.number, key.part, True), -1)
                if key.number == self.layout.loss_op:
                    for taker in self.takers.get((segment.device, Key("total", key.number, key.part)), ()):
                        yield "backward", taker
            for taker in self.takers.get((segment.device, key), ()):
                yield "backward", taker

    def _before_row(self, row: int) -> Iterator[tuple[str, int]]:
        task = self.native.task(row)
        if task.kind == SYNC:
            keys = [Key("state", tensor) for tensor, _ in task.pieces]
            yield from self._backward_of_takers(task.devices, keys)
        elif task.backward:
            key = Key("flow", task.flow) if task.kind == TRANSFER else Key("total", task.op, task.part)
            devices = task.devices[:1] if task.kind == TRANSFER else task.devices
            yield from self._backward_of_takers(devices, [key])
            yield self._arrival(key)
        else:
            key = Key("payload", task.flow) if task.kind == TRANSFER else Key("share", task.op, task.part)
            for device in task.devices[:1] if task.kind == TRANSFER else task.devices:
                yield "forward", self.maker[device, key]

    def _backward_of_takers(self, devices: Sequence[int], keys: Sequence[Key]) -> Iterator[tuple[str, int]]:
        for device in devices:
            for key in keys:
                for taker in self.takers.get((device, key), ()):
                    yield "backward", taker


def tasks_of(plan: Plan, event: Run) -> list[Task]:
    """The tasks that a run stands for, in the order in which it does them."""
    tasks = plan.segments[event.segment].tasks
    return tasks[::-1] if event.backward else tasks
