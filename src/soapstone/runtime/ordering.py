"""One order of everything that happens anywhere, in which nothing comes before what it waits for.

The simulated order decides between what is ready. Segments do several tasks in one go, so it cannot always be kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

from ..simulator import COMBINE, COMMUNICATION, GATHER, SYNC, TRANSFER
from .keys import FromOthers, Gathered, Given, Key, Payload, Received, Share, State, Total
from .placement import Placement
from .segments import Segment

Node = tuple[str, int]  # "forward" or "backward" of a segment, the "row" of a task, or "loss"
Order = list[Node]


class Ordering:
    """Everything that happens, and what it waits for."""

    def __init__(self, placement: Placement, segments: Sequence[Segment], num_ranks: int) -> None:
        self.placement, self.segments, self.num_ranks = placement, segments, num_ranks
        self.native, self.rows = placement.native, placement.order
        self.position = {row: i for i, row in enumerate(self.rows)}
        self.maker: dict[tuple[int, Key], int] = {}
        self.takers: dict[tuple[int, Key], list[int]] = defaultdict(list)
        for number, segment in enumerate(self.segments):
            self.maker.update({(segment.device, key): number for key in segment.gives})
            for key in segment.takes:
                self.takers[segment.device, key].append(number)
        self.nodes: dict[Node, tuple[float, str, int]] = {}
        self.after: dict[Node, list[Node]] = defaultdict(list)

    def result(self) -> Order:
        self._collect()
        waits = dict.fromkeys(self.nodes, 0)
        followers: dict[Node, list[Node]] = defaultdict(list)
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

    def _add(self, what: str, index: int, position: float, after: Iterator[Node]) -> None:
        self.nodes[what, index] = (position, what, index)
        self.after[what, index] += after

    def _collect(self) -> None:
        backward = self._backward_positions()
        for number, segment in enumerate(self.segments):
            last = max(self.position[task.row] for task in segment.tasks)
            closing = self._closes(segment)
            self._add("forward", number, inf if closing else last, self._before_forward(segment))
            if not closing and any(self.placement.graph.ops[task.op].backward for task in segment.tasks):
                own = [backward.get((task.op, task.part, task.finish), 0) for task in segment.tasks]
                self._add("backward", number, max(own), self._before_backward(number))
        for row in self.rows:
            task = self.native.task(row)
            if task.kind in COMMUNICATION and len(task.devices) > 1 and row != self.needless:
                self._add("row", row, self._position_of(row), self._before_row(row))
        if len(set(self.placement.devices[self.placement.loss_op])) < self.num_ranks:
            key = self.placement.home(self.placement.graph.loss, 0)
            made = self._source(self.placement.loss_holder, key)
            self._add("loss", 0, self.nodes.get(made, (0.0, "", 0))[0], iter([made]))

    def _position_of(self, row: int) -> float:
        """A gather begins right after what it waits for, ahead of what is computed meanwhile."""
        task = self.native.task(row)
        if task.kind != GATHER:
            return self.position[row]
        return max((self.position[before] for before in task.after), default=-1) + 0.5

    def _closes(self, segment: Segment) -> bool:
        """Whether a segment makes the loss whole, which backward does not wait for; nothing else in it has any."""
        return self.placement.is_weighed and any(t.finish and t.op == self.placement.loss_op for t in segment.tasks)

    def _backward_positions(self) -> dict[tuple[int, int, bool], int]:
        found = {}
        for row in self.rows:
            task = self.native.task(row)
            if task.backward and task.kind not in COMMUNICATION:
                found[task.op, task.part, task.finish] = self.position[row]
        return found

    @cached_property
    def combines(self) -> dict[tuple[int, int, bool], int]:
        """The row of each combine among several devices, by (op, group, backward)."""
        tasks = ((row, self.native.task(row)) for row in self.rows)
        return {(t.op, t.part, t.backward): row for row, t in tasks if t.kind == COMBINE and len(t.devices) > 1}

    @cached_property
    def needless(self) -> int | None:
        """The row that sums the loss's gradients, where every device that has the loss can take them by itself."""
        return self.combines.get((self.placement.loss_op, 0, True)) if self.placement.has_own_gradient else None

    def _source(self, device: int, key: Key) -> Node:
        """Where a device has something from: the segment that makes it, or the task that brings it."""
        maker = self.maker.get((device, key))
        if maker is not None:
            return "forward", maker
        assert isinstance(key, FromOthers)
        return self._arrival(key)

    def _arrival(self, key: FromOthers) -> Node:
        """The task that brings what other devices give."""
        if isinstance(key, Received):
            return "row", self.placement.flows[key.flow].forward
        if isinstance(key, Gathered):
            return "row", key.row
        return "row", self.combines[key.op, key.group, False]

    def _before_forward(self, segment: Segment) -> Iterator[Node]:
        for key in segment.takes:
            if not isinstance(key, Given):
                yield self._source(segment.device, key)

    def _before_backward(self, number: int) -> Iterator[Node]:
        segment = self.segments[number]
        yield "forward", number
        for key in segment.takes:
            if isinstance(key, Gathered) and key.row in self.placement.again:
                yield "row", self.placement.again[key.row]
        for key in segment.gives:
            if isinstance(key, Payload):
                yield "row", self.placement.flows[key.flow].backward
            elif isinstance(key, Share):
                row = self.combines.get((key.op, key.group, True))
                yield from [] if row is None else [("row", row)]
                if key.op == self.placement.loss_op and not self.placement.is_weighed:
                    yield from self._backward_of_takers([segment.device], [Total(key.op, key.group)])
            yield from self._backward_of_takers([segment.device], [key])

    def _before_row(self, row: int) -> Iterator[Node]:
        task = self.native.task(row)
        if task.kind == SYNC:
            yield from self._backward_of_takers(task.devices, [State(tensor) for tensor, _ in task.pieces])
            return
        if task.kind == GATHER:
            if task.backward:
                yield from self._forward_of_takers(task.devices, Gathered(self.first_gather[row]))
            return
        moves = task.kind == TRANSFER
        devices = task.devices[:1] if moves else task.devices
        if task.backward:
            taken = Received(task.flow) if moves else Total(task.op, task.part)
            yield from self._backward_of_takers(devices, [taken])
            yield self._arrival(taken)
        else:
            given = Payload(task.flow) if moves else Share(task.op, task.part)
            yield from (("forward", self.maker[device, given]) for device in devices)

    @cached_property
    def first_gather(self) -> dict[int, int]:
        """The row that gathered for forward what a row gathers for backward."""
        return {again: row for row, again in self.placement.again.items()}

    def _forward_of_takers(self, devices: Sequence[int], key: Key) -> Iterator[Node]:
        for device in devices:
            for taker in self.takers.get((device, key), ()):
                yield "forward", taker

    def _backward_of_takers(self, devices: Sequence[int], keys: Sequence[Key]) -> Iterator[Node]:
        for device in devices:
            for key in keys:
                for taker in self.takers.get((device, key), ()):
                    yield "backward", taker
