"""Run the tasks of a segment on real tensors: put their inputs together, run their parts, cut out what others read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from .. import _core
from ..parts import Box, Draws, Part, hull, lengths, local_shape, projected, reframe, whole
from .keys import BatchInput, Kept, Key, Output, Partial, Received, State, Total, Update
from .placement import Placement, Task
from .segments import Segment
from .shard import Shard
from .store import constant
from .windows import Windows

Piece = tuple[Box, torch.Tensor]


@dataclass(frozen=True)
class Held:
    """A box of a tensor, over some dims."""

    tensor: torch.Tensor
    box: Box
    dims: Sequence[Sequence[int]]

    def cut(self, box: Box, dims: Sequence[Sequence[int]]) -> torch.Tensor:
        return reframe(self.tensor, self.box, self.dims, box, dims)


class Weaver:
    """What all segments of a device have in common."""

    def __init__(self, placement: Placement, device: int, shards: Mapping[int, Shard], place: torch.device) -> None:
        self.placement, self.device, self.place = placement, device, place
        self.graph = placement.graph
        self.windows = Windows(placement, device, shards)
        self.needs = {tensor: self._need(tensor) for tensor in self.graph.inputs}

    @cached_property
    def constants(self) -> dict[int, torch.Tensor]:
        return {i: constant(t).to(self.place) for i, t in enumerate(self.graph.tensors) if t.source == "constant"}

    def _need(self, tensor: int) -> Box:
        """The box of an input that the device's parts read, over its axes; empty where they read none of it."""
        shape = self.graph.tensors[tensor].shape
        flat = [[n] for n in shape]
        boxes: list[Box] = []
        for task in self.placement.tasks.get(self.device, ()):
            for number, operand in enumerate(self.graph.ops[task.op].inputs):
                if operand.tensor == tensor and not task.finish:
                    dims = self.graph.ops[task.op].values[operand.value].factoring
                    read = projected(self.part(task.op, task.part).input_box(number), dims, flat)
                    boxes += [] if read is None else [read]
        return hull(boxes) if boxes else [(0, 0) for _ in shape]

    def output(self, tensor: int, out_part: int) -> tuple[Box, Sequence[Sequence[int]]]:
        """The box of an output part, and the dims that it is over."""
        index = self.placement.producer[tensor]
        op = self.graph.ops[index]
        number = next(n for n, operand in enumerate(op.outputs) if operand.tensor == tensor)
        box = self.part(index, self.placement.first_part(index, out_part)).output_box(number)
        return box, op.values[op.outputs[number].value].factoring

    def part(self, op: int, part: int) -> Part:
        return Part(self.graph, op, self.placement.degrees[op], part)

    def run(self, segment: Segment, inputs: Mapping[Key, torch.Tensor], draws: Draws | None) -> dict[Key, torch.Tensor]:
        """What the segment gives, of what it takes; some parts update no buffer."""
        run = _Run(self, dict(inputs), draws)
        for task in segment.tasks:
            run.execute(task)
        return {key: run.values[key] for key in segment.gives if key in run.values}

    def weigh(self, taken: Mapping[Key, torch.Tensor]) -> torch.Tensor:
        """What the device's parts of a mean add to its weight."""
        run = _Run(self, dict(taken), None)
        return torch.stack([run.weigh(task) for task in self.weighing.tasks]).sum()

    @cached_property
    def weighing(self) -> Segment:
        """The device's parts of a mean whose weight is known when a step begins, and what it takes to tell it."""
        placement, device = self.placement, self.device
        wanted = placement.is_weighed or (placement.microbatches > 1 and placement.has_early_weight)
        own = placement.tasks.get(device, ()) if wanted else ()
        tasks = [task for task in own if task.op == placement.loss_op and not task.finish]
        reads = dict.fromkeys(key for task in tasks for key in placement.reads(task, device))
        return Segment(device, tasks, [key for key in reads if isinstance(key, BatchInput | State)])


class _Run:
    def __init__(self, weaver: Weaver, values: dict[Key, torch.Tensor], draws: Draws | None) -> None:
        self.weaver, self.values, self.draws = weaver, values, draws
        self.placement, self.graph, self.device = weaver.placement, weaver.graph, weaver.device

    def execute(self, task: Task) -> None:
        if task.deliver:
            self._cut_payloads(task)
        elif task.finish:
            self._finish(task)
        elif self.placement.groups[task.op]:
            self._partial(task)
        else:
            part = self.weaver.part(task.op, task.part)
            self._keep(task, part, part.run(self._inputs(task, part), self.draws))

    def _partial(self, task: Task) -> None:
        op, placement = self.graph.ops[task.op], self.placement
        part = self.weaver.part(task.op, task.part)
        self.values[Partial(task.op, task.part)] = part.partial(self._inputs(task, part), self.draws)
        for value in placement.finishes[task.op].kept:
            self.values[Kept(task.op, task.part, value)] = part.values[value]
        if (task.op, task.part) not in placement.adders:
            return
        added = placement.added(task)
        self.values[added] = self._added(task)
        if isinstance(added, Total) and not op.finishes:
            self._cut_payloads(task)

    def weigh(self, task: Task) -> torch.Tensor:
        """The weight in a part of a mean, for which what ops make does not matter."""
        part = self.weaver.part(task.op, task.part)
        made = [self.graph.tensors[operand.tensor].source == "op" for operand in part.op.inputs]
        inputs = [self._nothing(part, n) if late else self._input(task, part, n) for n, late in enumerate(made)]
        return part.partial(inputs)[1]

    def _added(self, task: Task) -> torch.Tensor:
        """The partials of a group that this device has, together: summed, or side by side with gaps for the others."""
        combine, mates = self.graph.ops[task.op].combine, self.placement.mates(task.op, task.part)
        mine = {p: self.values.get(Partial(task.op, p)) for p in mates}
        shares = [x if self.placement.devices[task.op][p] == self.device else None for p, x in mine.items()]
        own = [x for x in shares if x is not None]
        if combine is not None and combine.mode == "gather":
            empty = torch.zeros_like(own[0])
            return torch.stack([empty if x is None else x for x in shares])
        total = own[0]
        for share in own[1:]:
            total = total + share
        return total

    def _finish(self, task: Task) -> None:
        op = self.graph.ops[task.op]
        part = self.weaver.part(task.op, task.part)
        finish = self.placement.finishes[task.op]
        part.values.update({value: self.values[Kept(task.op, task.part, value)] for value in finish.kept})
        for number, operand in enumerate(op.inputs):
            if operand.value in finish.inputs:
                part.values[operand.value] = self._input(task, part, number)
        total = self.values[Total(task.op, self.placement.group(task.op, task.part))]
        self._keep(task, part, part.finish(total, self.draws, finish.again))

    def _keep(self, task: Task, part: Part, outputs: list[torch.Tensor]) -> None:
        """Outputs for their readers, and the next values of buffers for the step's end."""
        made = self.placement.output_part(task.op, task.part)
        for operand, output in zip(part.op.outputs, outputs):
            self.values[Output(operand.tensor, made)] = output
        for tensor, (_, values) in part.updates.items():
            self.values[Update(tensor, task.part)] = values.detach()
        self._cut_payloads(task)

    # Inputs

    def _inputs(self, task: Task, part: Part) -> list[torch.Tensor]:
        return [self._input(task, part, number) for number in range(len(part.op.inputs))]

    def _input(self, task: Task, part: Part, number: int) -> torch.Tensor:
        held = self._held_input(task, number)
        if held is None:
            return self._nothing(part, number)
        return held.cut(part.input_box(number), part.op.values[part.op.inputs[number].value].factoring)

    def _nothing(self, part: Part, number: int) -> torch.Tensor:
        """In the place of an input of which nothing is read."""
        operand = part.op.inputs[number]
        shape = local_shape(part.input_box(number), part.op.values[operand.value].factoring)
        return torch.zeros(shape, dtype=getattr(torch, self.graph.tensors[operand.tensor].dtype))

    def _held_input(self, task: Task, number: int) -> Held | None:
        index = self.graph.ops[task.op].inputs[number].tensor
        match self.graph.tensors[index].source:
            case "parameter" | "buffer":
                key = self.weaver.windows.window(task.op, task.part, number)
                return None if key is None else Held(*self.weaver.windows.held(key, self.values[key]))
            case "op":
                return self._gathered(task, number, index)
            case source:  # an input or a constant
                flat = [[n] for n in self.graph.tensors[index].shape]
                if source == "constant":
                    return Held(self.weaver.constants[index], whole(flat), flat)
                return Held(self.values[BatchInput(index)], self.weaver.needs[index], flat)

    def _gathered(self, task: Task, number: int, index: int) -> Held | None:
        """An input, put together from the flows that carry it."""
        hull, flows = self.placement.native.fetch(task.op, task.part, number)
        if not flows:
            return None
        dims = self.placement.dims[index]
        pieces: list[Piece] = []
        for flow, boxes in flows:
            held = self._arrived(flow)
            if len(flows) == 1 and boxes == [hull]:
                return held
            pieces += [(box, held.cut(box, dims).reshape(lengths(box))) for box in boxes]
        return Held(tiled(hull, pieces).reshape(local_shape(hull, dims)), hull, dims)

    def _arrived(self, number: int) -> Held:
        """What a flow carries, on this device."""
        flow = self.placement.flows[number]
        if flow.source == self.device:
            return self._made(flow.tensor, flow.part)
        dims, dtype = self.placement.dims[flow.tensor], getattr(torch, self.graph.tensors[flow.tensor].dtype)
        payload = self.values[Received(number)].to(dtype)
        return Held(payload.reshape(local_shape(flow.hull, dims)), flow.hull, dims)

    def _made(self, tensor: int, out_part: int) -> Held:
        """An output that is on this device."""
        box, dims = self.weaver.output(tensor, out_part)
        return Held(self.values[self.placement.home(tensor, out_part)], box, dims)

    # Outputs

    def _cut_payloads(self, task: Task) -> None:
        for key in self.placement.payloads(task, self.device):
            flow = self.placement.flows[key.flow]
            held, dims = self._made(flow.tensor, flow.part), self.placement.dims[flow.tensor]
            made = _core.project(list(held.box), [list(axis) for axis in held.dims], dims)
            boxes = [both for box in made if (both := _intersect(box, flow.hull)) is not None]
            pieces = [(box, held.cut(box, dims).reshape(lengths(box))) for box in boxes]
            payload = tiled(flow.hull, pieces).contiguous()
            self.values[key] = payload.to(torch.uint8) if payload.dtype == torch.bool else payload


def tiled(hull: Box, pieces: list[Piece]) -> torch.Tensor:
    """The tensor over a hull that these disjoint pieces make up, zero where none lies."""
    for axis in range(len(hull)):
        slabs = _slabs(hull, pieces, axis)
        if len(slabs) > 1:
            return torch.cat([tiled(slab, inside) for slab, inside in slabs], axis)
    if len(pieces) == 1 and list(pieces[0][0]) == list(hull):
        return pieces[0][1]
    some = pieces[0][1] if pieces else None
    if some is None:
        raise AssertionError("a slab without a piece has no type")
    total = None
    for box, tensor in pieces:
        pads = [n for (lo, hi), (start, end) in reversed(list(zip(box, hull))) for n in (lo - start, end - hi)]
        padded = F.pad(tensor, pads)
        total = padded if total is None else total + padded
    assert total is not None
    return total


def _slabs(hull: Box, pieces: list[Piece], axis: int) -> list[tuple[Box, list[Piece]]]:
    """Cut a hull along an axis wherever no piece is cut and every slab has one."""
    found: list[tuple[Box, list[Piece]]] = []
    start, reach, inside = hull[axis][0], hull[axis][0], list[Piece]()
    for piece in sorted(pieces, key=lambda piece: piece[0][axis][0]):
        lo, hi = piece[0][axis]
        if inside and lo >= reach:
            found.append(([*hull[:axis], (start, lo), *hull[axis + 1 :]], inside))
            start, inside = lo, []
        inside.append(piece)
        reach = max(reach, hi)
    found.append(([*hull[:axis], (start, hull[axis][1]), *hull[axis + 1 :]], inside))
    return found


def _intersect(a: Box, b: Box) -> Box | None:
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b)]
    return None if any(lo >= hi for lo, hi in both) else both
