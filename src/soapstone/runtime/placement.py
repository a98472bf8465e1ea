"""What each device reads and makes under a strategy, by its forward tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from ..graph import ITEM_SIZES, Op
from ..parts.place import COMBINED
from ..simulator import COMBINE, FORWARD, GATHER, Simulation
from .finishes import Finish, finish_of
from .keys import BatchInput, Gathered, Kept, Key, Output, Partial, Payload, Received, Share, State, Total, Update


@dataclass(frozen=True, slots=True)
class Task:
    """One forward task of a device. `finish`: the steps after a combine; `deliver`: no steps at all, only cutting a
    total up for other devices."""

    row: int
    op: int
    part: int
    finish: bool = False
    deliver: bool = False


class Placement:
    """Who reads and makes what of each microbatch, under a strategy; `order` has the rows of the first one, and those
    that are for all."""

    def __init__(self, simulation: Simulation, order: Sequence[int], keep_all: bool = False) -> None:
        self.keep_all = keep_all
        self.graph, self.native = simulation.played, simulation.native
        self.microbatches = simulation.strategy.microbatches
        self.joins = simulation.strategy.joins
        self.in_flight = [count or self.microbatches for *_, count in simulation.strategy.native]
        self.order = [row for row in order if self.native.task(row).first == row]
        self.degrees = [degrees for degrees, *_ in simulation.strategy.native]
        self.devices = [devices for _, devices, *_ in simulation.strategy.native]
        self.recompute = [again for *_, again, _ in simulation.strategy.native]
        self.dims = [self.graph.native.factoring(i) for i in range(len(self.graph.tensors))]
        self.flows = [self.native.flow(i) for i in range(self.native.num_flows)]
        self.groups = [self.native.groups(i) for i in range(len(self.graph.ops))]
        self.producer = self.graph.producer
        self.holders = {
            i: {d for holders, _ in self.native.pieces(i) for d in holders}
            for i, t in enumerate(self.graph.tensors)
            if t.source in ("parameter", "buffer")
        }

    @cached_property
    def outgoing(self) -> dict[tuple[int, int, int], list[int]]:
        """The flows to other devices by (device, tensor, output part)."""
        found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, flow in enumerate(self.flows):
            if flow.source != flow.device:
                found[flow.source, flow.tensor, flow.part].append(number)
        return found

    @cached_property
    def gathers(self) -> dict[tuple[int, int], list[int]]:
        """The rows that gather a parameter for forward, by (device, parameter)."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in self.order:
            task = self.native.task(row)
            if task.kind == GATHER and not task.backward:
                for tensor, device in product(dict.fromkeys(tensor for tensor, _ in task.pieces), task.devices):
                    found[device, tensor].append(row)
        return found

    @cached_property
    def again(self) -> dict[int, int]:
        """The row that gathers for backward what a row gathered for forward."""
        tasks = ((row, self.native.task(row)) for row in self.order)
        rows = {(task.pieces[0], task.backward): row for row, task in tasks if task.kind == GATHER}
        return {row: rows[piece, True] for (piece, back), row in rows.items() if not back and (piece, True) in rows}

    @cached_property
    def tasks(self) -> dict[int, list[Task]]:
        """The forward tasks of each device, in order."""
        found: dict[int, list[Task]] = defaultdict(list)
        for row in self.order:
            task = self.native.task(row)
            if task.kind == FORWARD:
                found[task.devices[0]].append(Task(row, task.op, task.part, task.finish))
            elif task.kind == COMBINE and not task.backward and not self.graph.ops[task.op].finishes:
                for device in task.devices if len(task.devices) > 1 else ():
                    part = next(p for p in self.groups[task.op][task.part] if self.devices[task.op][p] == device)
                    deliver = Task(row, task.op, part, deliver=True)
                    if any(True for _ in self.payloads(deliver, device)):
                        found[device].append(deliver)
        return found

    @cached_property
    def adders(self) -> set[tuple[int, int]]:
        """Of each group's parts on a device, the last one to run: it adds their partials up."""
        last: dict[tuple[int, int, int], int] = {}
        for device, tasks in self.tasks.items():
            for task in tasks:
                if self.groups[task.op] and not task.finish and not task.deliver:
                    last[device, task.op, self.group(task.op, task.part)] = task.part
        return {(op, part) for (_, op, _), part in last.items()}

    @cached_property
    def finishes(self) -> list[Finish]:
        """By op, what its finish begins with."""
        return [finish_of(self.graph, op) for op in self.graph.ops]

    @property
    def loss_op(self) -> int:
        return self.producer[self.graph.loss]

    @cached_property
    def has_own_gradient(self) -> bool:
        """Whether each device of a combined loss can begin backward by itself: its finish must lead back to nothing
        but the total, or what lies beside it would get a gradient from every device."""
        op = self.graph.ops[self.loss_op]
        if not self.groups[self.loss_op] or not op.finishes:
            return bool(self.groups[self.loss_op])
        if COMBINED[op.steps[op.head].kind].finish_reads:
            return False
        beside = {o.value for o in op.inputs if not self.graph.tensors[o.tensor].grad}
        made = {value for step in op.steps[op.head :] for value in step.outputs}
        return all(value in beside | made for step in op.steps[op.head + 1 :] for value in step.inputs)

    @cached_property
    def is_weighed(self) -> bool:
        """Whether backward can begin before a combined mean is whole: what it is divided by depends on nothing that
        ops make or training changes, and nothing comes after it."""
        return self.has_own_gradient and self.has_early_weight and self.crosses(self.loss_op, 0)

    @cached_property
    def has_early_weight(self) -> bool:
        """Whether the loss is a mean of which is known when a step begins what it is divided by."""
        op = self.graph.ops[self.loss_op]
        head = op.steps[op.head]
        if not op.finishes or head is not op.steps[-1] or not COMBINED[head.kind].weighs:
            return False
        late = self._late_values(op)
        return not any(value in late for slot, value in zip(head.slots, head.inputs) if slot != "self")

    def _late_values(self, op: Op) -> set[int]:
        """The values before a combine that are not known when a step begins, or that training changes."""
        tensors = [(operand.value, self.graph.tensors[operand.tensor]) for operand in op.inputs]
        late = {value for value, tensor in tensors if tensor.source == "op" or tensor.grad}
        for step in op.steps[: op.head]:
            late.update(step.outputs if late.intersection(step.inputs) else ())
        return late

    @cached_property
    def loss_holder(self) -> int:
        """The first device that has the loss."""
        return self.devices[self.loss_op][0]

    def synced_bytes(self, device: int) -> dict[int, int]:
        """The bytes of each parameter's gradient that a device sums with others."""
        found: dict[int, int] = defaultdict(int)
        for i, tensor in enumerate(self.graph.tensors):
            for holders, boxes in self.native.pieces(i) if tensor.grad and tensor.source == "parameter" else ():
                if device in holders and len(holders) > 1:
                    found[i] += sum(prod(hi - lo for lo, hi in box) for box in boxes) * ITEM_SIZES[tensor.dtype]
        return found

    def output_part(self, op: int, part: int) -> int:
        copies = 1
        for dim, degree in zip(self.graph.ops[op].dims, self.degrees[op]):
            copies *= degree if dim.extra else 1
        return part // copies

    def first_part(self, op: int, out_part: int) -> int:
        """The first of the parts that share an output part."""
        return next(p for p in range(len(self.devices[op])) if self.output_part(op, p) == out_part)

    @cached_property
    def kept(self) -> set[Key]:
        """What a step keeps to its end: the parts of the loss, or of the output in its place; or all that ops make."""
        wanted = self.producer if self.keep_all else [self.graph.loss]
        return {self.home(tensor, part) for tensor in wanted for part in self.output_parts(tensor)}

    def output_parts(self, tensor: int) -> list[int]:
        op = self.producer[tensor]
        return sorted({self.output_part(op, part) for part in range(len(self.devices[op]))})

    def group(self, op: int, part: int) -> int:
        return next(g for g, parts in enumerate(self.groups[op]) if part in parts)

    def mates(self, op: int, part: int) -> list[int]:
        """The parts that combine with this one."""
        return self.groups[op][self.group(op, part)]

    def crosses(self, op: int, part: int) -> bool:
        """Whether a part's combine needs other devices."""
        return len({self.devices[op][p] for p in self.mates(op, part)}) > 1

    def home(self, tensor: int, out_part: int) -> Output | Total:
        """Where an output is on a device that has it: what a combine leaves may be the output itself."""
        index = self.producer[tensor]
        if self.groups[index] and not self.graph.ops[index].finishes:
            return Total(index, self.group(index, self.first_part(index, out_part)))
        return Output(tensor, out_part)

    def reads(self, task: Task, device: int) -> Iterator[Key]:
        op = self.graph.ops[task.op]
        if task.deliver:
            yield Total(task.op, self.group(task.op, task.part))
            return
        for number, operand in enumerate(op.inputs):
            if not task.finish or operand.value in self.finishes[task.op].inputs:
                yield from self._sources(task.op, task.part, number, device)
        if task.finish:
            yield Total(task.op, self.group(task.op, task.part))
            for value in self.finishes[task.op].kept:
                yield Kept(task.op, task.part, value)
        elif self.groups[task.op] and (task.op, task.part) in self.adders:
            for part in self.mates(task.op, task.part):
                if self.devices[task.op][part] == device and part != task.part:
                    yield Partial(task.op, part)

    def _sources(self, op: int, part: int, number: int, device: int) -> Iterator[Key]:
        tensor = self.graph.ops[op].inputs[number].tensor
        source = self.graph.tensors[tensor].source
        if source == "op":
            for index, _ in self.native.fetch(op, part, number)[1]:
                flow = self.flows[index]
                yield self.home(tensor, flow.part) if flow.source == device else Received(index)
        elif source == "input":
            yield BatchInput(tensor)
        elif source != "constant" and device in self.holders[tensor]:
            yield State(tensor)
            for row in self.gathers.get((device, tensor), ()):
                yield Gathered(row)

    def makes(self, task: Task, device: int) -> Iterator[Key]:
        op = self.graph.ops[task.op]
        if self.groups[task.op] and not task.finish and not task.deliver:
            yield Partial(task.op, task.part)
            for value in self.finishes[task.op].kept:
                yield Kept(task.op, task.part, value)
            if (task.op, task.part) in self.adders:
                added = self.added(task)
                yield added
                if isinstance(added, Total) and not op.finishes:
                    yield from self.payloads(task, device)
            return
        if not task.deliver:
            for operand in op.outputs:
                yield Output(operand.tensor, self.output_part(task.op, task.part))
            for operand in op.updates:
                yield Update(operand.tensor, task.part)
        yield from self.payloads(task, device)

    def added(self, task: Task) -> Share | Total:
        """What a device's partials of a group add up to."""
        sum_of = Share if self.crosses(task.op, task.part) else Total
        return sum_of(task.op, self.group(task.op, task.part))

    def payloads(self, task: Task, device: int) -> Iterator[Payload]:
        out = self.output_part(task.op, task.part)
        for operand in self.graph.ops[task.op].outputs:
            for flow in self.outgoing.get((device, operand.tensor, out), ()):
                yield Payload(flow)
