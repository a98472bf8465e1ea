"""One order of everything that happens anywhere, in which nothing comes before what it waits for.

The simulated order decides between what is ready. Segments do several tasks in one go, so it cannot always be kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import inf

from ..simulator import COMBINE, COMMUNICATION, GATHER, SYNC, TRANSFER
from .keys import FromOthers, Gathered, Given, Key, Payload, Received, Share, State, Total
from .placement import Placement
from .segments import Segment

# "forward" or "backward" of a segment, the "row" of a task, or "loss"; its number; the microbatch
Node = tuple[str, int, int]
Order = list[Node]


class Ordering:
    """Everything that happens, and what it waits for."""

    def __init__(self, placement: Placement, segments: Sequence[Segment], num_ranks: int, rows: Sequence[int]) -> None:
        self.placement, self.segments, self.num_ranks = placement, segments, num_ranks
        self.native, self.rows = placement.native, rows
        self.position = {row: i for i, row in enumerate(rows)}
        tasks = ((row, self.native.task(row)) for row in rows)
        self.row_of = {(task.first, task.microbatch): row for row, task in tasks}
        self.maker: dict[tuple[int, Key], int] = {}
        self.takers: dict[tuple[int, Key], list[int]] = defaultdict(list)
        for number, segment in enumerate(self.segments):
            self.maker.update({(segment.device, key): number for key in segment.gives})
            for key in segment.takes:
                self.takers[segment.device, key].append(number)
        self.nodes: dict[Node, tuple[float, str, int, int]] = {}
        self.after: dict[Node, list[Node]] = defaultdict(list)

    def result(self) -> Order:
        self._collect()
        waits = dict.fromkeys(self.nodes, 0)
        followers: dict[Node, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for before in set(self.after[node]) & self.nodes.keys():
                followers[before].append(node)
                waits[node] += 1
        ready = [self.nodes[node] for node, count in waits.items() if not count]
        heapq.heapify(ready)
        order: Order = []
        while ready:
            _, what, index, microbatch = heapq.heappop(ready)
            order.append((what, index, microbatch))
            for node in followers[what, index, microbatch]:
                waits[node] -= 1
                if not waits[node]:
                    heapq.heappush(ready, self.nodes[node])
        assert len(order) == len(self.nodes), "segments wait for one another"
        return order

    def _add(self, node: Node, position: float, after: Iterator[Node]) -> None:
        self.nodes[node] = (position, *node)
        self.after[node] += after

    def _collect(self) -> None:
        backward = self._backward_positions()
        for number, microbatch in product(range(len(self.segments)), range(self.placement.microbatches)):
            segment = self.segments[number]
            last = max(self.position[self.row_of[task.row, microbatch]] for task in segment.tasks)
            closing = self._closes(segment)
            self._add(
                ("forward", number, microbatch), inf if closing else last, self._before_forward(number, microbatch)
            )
            if not closing and any(self.placement.graph.ops[task.op].backward for task in segment.tasks):
                own = [backward.get((task.op, task.part, task.finish, microbatch), 0) for task in segment.tasks]
                self._add(("backward", number, microbatch), max(own), self._before_backward(number, microbatch))
        for row in self.rows:
            task = self.native.task(row)
            if task.kind in COMMUNICATION and len(task.devices) > 1 and task.first != self.needless:
                self._add(("row", row, task.microbatch), self._position_of(row), self._before_row(row))
        if len(set(self.placement.devices[self.placement.loss_op])) < self.num_ranks:
            key = self.placement.home(self.placement.graph.loss, 0)
            made = [self._source(self.placement.loss_holder, key, i) for i in range(self.placement.microbatches)]
            known = [self.nodes[node][0] for node in made if node in self.nodes]
            self._add(("loss", 0, 0), max(known, default=0.0), iter(made))

    def _position_of(self, row: int) -> float:
        """A gather begins right after what it waits for, ahead of what is computed meanwhile."""
        task = self.native.task(row)
        if task.kind != GATHER:
            return self.position[row]
        return max((self.position[before] for before in task.after), default=-1) + 0.5

    def _closes(self, segment: Segment) -> bool:
        """Whether a segment makes the loss whole, which backward does not wait for; nothing else in it has any."""
        return self.placement.is_weighed and any(t.finish and t.op == self.placement.loss_op for t in segment.tasks)

    def _backward_positions(self) -> dict[tuple[int, int, bool, int], int]:
        found = {}
        for row in self.rows:
            task = self.native.task(row)
            if task.backward and task.kind not in COMMUNICATION:
                found[task.op, task.part, task.finish, task.microbatch] = self.position[row]
        return found

    @cached_property
    def combines(self) -> dict[tuple[int, int, bool], int]:
        """The first microbatch's row of each combine among several devices, by (op, group, backward)."""
        tasks = ((row, self.native.task(row)) for row in self.placement.order)
        return {(t.op, t.part, t.backward): row for row, t in tasks if t.kind == COMBINE and len(t.devices) > 1}

    @cached_property
    def needless(self) -> int | None:
        """The row that sums the loss's gradients, where every device that has the loss can take them by itself."""
        return self.combines.get((self.placement.loss_op, 0, True)) if self.placement.has_own_gradient else None

    def _row(self, first: int, microbatch: int) -> Node:
        """A task of some microbatch; where only the first one does it, that."""
        microbatch = microbatch if (first, microbatch) in self.row_of else 0
        return "row", self.row_of[first, microbatch], microbatch

    def _source(self, device: int, key: Key, microbatch: int) -> Node:
        """Where a device has something from: the segment that makes it, or the task that brings it."""
        maker = self.maker.get((device, key))
        if maker is not None:
            return "forward", maker, microbatch
        assert isinstance(key, FromOthers)
        return self._arrival(key, microbatch)

    def _arrival(self, key: FromOthers, microbatch: int) -> Node:
        """The task that brings what other devices give."""
        if isinstance(key, Received):
            return self._row(self.placement.flows[key.flow].forward, microbatch)
        if isinstance(key, Gathered):
            return self._row(key.row, microbatch)
        return self._row(self.combines[key.op, key.group, False], microbatch)

    def _before_forward(self, number: int, microbatch: int) -> Iterator[Node]:
        segment = self.segments[number]
        for key in segment.takes:
            if not isinstance(key, Given):
                yield self._source(segment.device, key, microbatch)
        yield "forward", number, microbatch - 1
        yield "backward", number, microbatch - self._in_flight(segment)

    def _in_flight(self, segment: Segment) -> int:
        """How many microbatches a segment may have in flight."""
        return min(self.placement.in_flight[task.op] for task in segment.tasks)

    def _before_backward(self, number: int, microbatch: int) -> Iterator[Node]:
        segment = self.segments[number]
        yield "forward", number, microbatch
        yield "backward", number, microbatch - 1
        for key in segment.takes:
            if isinstance(key, Gathered) and key.row in self.placement.again:
                yield self._row(self.placement.again[key.row], microbatch)
        for key in segment.gives:
            if isinstance(key, Payload):
                if (row := self.placement.flows[key.flow].backward) >= 0:
                    yield self._row(row, microbatch)
            elif isinstance(key, Share):
                summed = self.combines.get((key.op, key.group, True))
                yield from [] if summed is None else [self._row(summed, microbatch)]
                if key.op == self.placement.loss_op and not self.placement.is_weighed:
                    total = Total(key.op, key.group)
                    yield from self._of_takers("backward", [segment.device], total, microbatch)
            yield from self._of_takers("backward", [segment.device], key, microbatch)

    def _before_row(self, row: int) -> Iterator[Node]:
        task = self.native.task(row)
        if task.kind == SYNC:
            for (tensor, _), i in product(task.pieces, range(self.placement.microbatches)):
                yield from self._of_takers("backward", task.devices, State(tensor), i)
            return
        if task.kind == GATHER:
            if task.backward:
                gathered = Gathered(self.first_gather[task.first])
                yield from self._of_takers("forward", task.devices, gathered, task.microbatch)
            return
        moves = task.kind == TRANSFER
        devices = task.devices[:1] if moves else task.devices
        if task.backward:
            taken = Received(task.flow) if moves else Total(task.op, task.part)
            yield from self._of_takers("backward", devices, taken, task.microbatch)
            yield self._arrival(taken, task.microbatch)
        else:
            given = Payload(task.flow) if moves else Share(task.op, task.part)
            yield from (("forward", self.maker[device, given], task.microbatch) for device in devices)

    @cached_property
    def first_gather(self) -> dict[int, int]:
        """The row that gathered for forward what a row gathers for backward."""
        return {again: row for row, again in self.placement.again.items()}

    def _of_takers(self, what: str, devices: Sequence[int], key: Key, microbatch: int) -> Iterator[Node]:
        """Forward or backward of the segments that take something."""
        for device in devices:
            for taker in self.takers.get((device, key), ()):
                yield what, taker, microbatch
