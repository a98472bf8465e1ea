"""Run one rank's program for one step.

Every part of every op is an autograd graph of its own: its inputs are leaves, put together from the flows that reach
this rank. Backward, a part's leaves give their gradients to the same flows, each flow's gradients are summed on its
device and go back to where the flow came from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .. import _core
from ..graph import OperatorGraph
from ..parts import Box, Part, local_shape, reframe, whole
from ..simulator import Simulation
from .draws import CounterDraws, ReplayDraws
from .plan import Combine, Compute, Instruction, Program, Receive, Send, Sync
from .store import Store, constant
from .transport import Transport

Key = tuple[int, int]  # (op, part), (op, group) or (tensor, output part)


@dataclass
class Held:
    """A box of a tensor on this rank, over some dims."""

    tensor: torch.Tensor
    box: Box
    dims: Sequence[Sequence[int]]

    def cut(self, box: Box, dims: Sequence[Sequence[int]]) -> torch.Tensor:
        return reframe(self.tensor, self.box, self.dims, box, dims)


@dataclass
class Running:
    """A part between its forward and its backward."""

    part: Part
    leaves: dict[int, torch.Tensor]  # by input
    outputs: list[torch.Tensor] = field(default_factory=list)
    share: torch.Tensor | None = None


@dataclass
class Scratch:
    """What lives for one step."""

    batch: dict[int, torch.Tensor] = field(default_factory=dict)
    held: dict[Key, Held] = field(default_factory=dict)
    running: dict[Key, Running] = field(default_factory=dict)
    combined: dict[Key, torch.Tensor] = field(default_factory=dict)
    combined_grad: dict[Key, torch.Tensor] = field(default_factory=dict)
    flow_grads: dict[int, torch.Tensor] = field(default_factory=dict)
    arrived: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))  # flows with a gradient
    updates: list[tuple[int, Box, list[list[int]], torch.Tensor]] = field(default_factory=list)


class Executor:
    def __init__(
        self, simulation: Simulation, program: Program, store: Store, transport: Transport,
        draws: CounterDraws | ReplayDraws,
    ) -> None:  # fmt: skip
        self.graph: OperatorGraph = simulation.graph
        self.native, self.strategy = simulation.native, simulation.strategy
        self.program, self.store, self.transport, self.draws = program, store, transport, draws
        self.rank = program.rank
        self.degrees = [degrees for degrees, _ in self.strategy.native]
        self.devices = [devices for _, devices in self.strategy.native]
        self.dims = [self.graph.native.factoring(i) for i in range(len(self.graph.tensors))]
        self.loss_op = next(i for i, op in enumerate(self.graph.ops) for o in op.outputs if o.tensor == self.graph.loss)
        self.constants = {i: constant(t) for i, t in enumerate(self.graph.tensors) if t.source == "constant"}
        self.flows = [self.native.flow(i) for i in range(self.native.num_flows)]
        self.scratch = Scratch()

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Forward, backward and gradient sync of one batch; the loss on the rank that has it, else zero."""
        self.scratch = Scratch(batch=dict(zip(self.graph.inputs, batch)))
        self.draws.begin()
        for instruction in self.program.instructions:
            if isinstance(instruction, Receive):
                self._expect(instruction)
        for instruction in self.program.instructions:
            self._execute(instruction)
        self.transport.finish()
        for update in self.scratch.updates:
            self.store.update(*update)
        for counter in self.store.counters.values():
            counter += 1
        loss = self._loss()
        self.scratch = Scratch()
        return loss

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Compute(backward=False, finish=False):
                self._forward(instruction)
            case Compute(backward=False, finish=True):
                self._finish(instruction)
            case Compute(backward=True, finish=True):
                self._finish_backward(instruction)
            case Compute():
                self._backward(instruction)
            case Combine(backward=False):
                self._combine(instruction)
            case Combine():
                self._combine_backward(instruction)
            case Send():
                self.transport.send(instruction.row, self._payload(instruction), instruction.target)
            case Receive():
                self._receive(instruction)
            case Sync():
                self._sync(instruction)

    # Forward

    def _forward(self, task: Compute) -> None:
        op = self.graph.ops[task.op]
        running = Running(Part(self.graph, task.op, self.degrees[task.op], task.part), {})
        inputs = [self._input(task, running, i) for i in range(len(op.inputs))]
        self.scratch.running[task.op, task.part] = running
        if self.native.groups(task.op):
            running.share = running.part.partial(inputs, self.draws)
        else:
            self._hold(task.op, task.part, running.part.run(inputs, self.draws))

    def _input(self, task: Compute, running: Running, number: int) -> torch.Tensor:
        operand = self.graph.ops[task.op].inputs[number]
        tensor = self.graph.tensors[operand.tensor]
        box, dims = running.part.input_box(number), running.part.op.values[operand.value].factoring
        if tensor.source in ("parameter", "buffer"):
            shard = self.store.shards.get(operand.tensor)
            if shard is None:  # nothing of it is read
                return torch.zeros(local_shape(box, dims), dtype=getattr(torch, tensor.dtype))
            return reframe(shard.tensor, shard.box, shard.dims, box, dims)
        if tensor.source != "op":
            full = self.constants.get(operand.tensor)
            full = self.scratch.batch[operand.tensor] if full is None else full
            flat = [[n] for n in full.shape]
            return reframe(full, whole(flat), flat, box, dims)
        hull, _ = self.native.fetch(task.op, task.part, number)
        leaf = self._gather(task, number)
        if leaf is None:
            return torch.zeros(local_shape(box, dims), dtype=getattr(torch, tensor.dtype))
        running.leaves[number] = leaf.requires_grad_(tensor.grad)
        return reframe(leaf, hull, self.dims[operand.tensor], box, dims)

    def _gather(self, task: Compute, number: int) -> torch.Tensor | None:
        """Put an input together from the flows that carry it."""
        index = self.graph.ops[task.op].inputs[number].tensor
        hull, flows = self.native.fetch(task.op, task.part, number)
        dims = self.dims[index]
        if not flows:
            return None
        if len(flows) == 1 and flows[0][1] == [hull]:
            return self.scratch.held[index, self.flows[flows[0][0]].part].cut(hull, dims).detach()
        buffer = torch.empty(_lengths(hull), dtype=getattr(torch, self.graph.tensors[index].dtype))
        for flow, boxes in flows:
            held = self.scratch.held[index, self.flows[flow].part]
            for box in boxes:
                window = _window(buffer, hull, box)
                window.copy_(held.cut(box, dims).reshape(window.shape))
        return buffer.reshape(local_shape(hull, dims))

    def _hold(self, index: int, part: int, outputs: list[torch.Tensor]) -> None:
        """Keep what a part made: its outputs for their readers, the next values of buffers for the step's end."""
        running, op = self._running(index, part), self.graph.ops[index]
        running.outputs = outputs
        made_part = self._output_part(index, part)
        for number, (operand, output) in enumerate(zip(op.outputs, outputs)):
            made = op.values[operand.value].factoring
            self.scratch.held[operand.tensor, made_part] = Held(output.detach(), running.part.output_box(number), made)
        for tensor, (box, values) in running.part.updates.items():
            value = next(o.value for o in op.inputs if o.tensor == tensor)
            dims = [list(axis) for axis in op.values[value].factoring]
            self.scratch.updates.append((tensor, box, dims, values))

    def _output_part(self, op: int, part: int) -> int:
        copies = 1
        for dim, degree in zip(self.graph.ops[op].dims, self.degrees[op]):
            copies *= degree if dim.extra else 1
        return part // copies

    def _combine(self, task: Combine) -> None:
        op = self.graph.ops[task.op]
        parts = self.native.groups(task.op)[task.group]
        mine = {k: part for k, part in enumerate(parts) if self.devices[task.op][part] == self.rank}
        shares = {k: self._running(task.op, part).share for k, part in mine.items()}
        combine = op.combine
        assert combine is not None
        total: torch.Tensor | None = None
        for k, share in shares.items():
            assert share is not None
            if combine.mode == "gather":
                total = share.new_zeros(len(parts), *share.shape) if total is None else total
                total[k] = share.detach()
            else:
                total = share.detach().clone() if total is None else total + share.detach()
        assert total is not None
        if len(task.ranks) > 1:
            total = self.transport.all_reduce(task.row, total, task.ranks)
        self.scratch.combined[task.op, task.group] = total.requires_grad_(op.backward and total.is_floating_point())
        if not op.finishes:
            self._hold(task.op, next(iter(mine.values())), [total])

    def _finish(self, task: Compute) -> None:
        running = self._running(task.op, task.part)
        combined = self.scratch.combined[task.op, self._group(task.op, task.part)]
        self._hold(task.op, task.part, running.part.finish(combined, self.draws))

    def _group(self, op: int, part: int) -> int:
        return next(g for g, parts in enumerate(self.native.groups(op)) if part in parts)

    def _running(self, op: int, part: int) -> Running:
        return self.scratch.running[op, part]

    # Backward

    def _output_gradients(self, op: int, part: int) -> list[torch.Tensor | None]:
        """The gradient of each output of a part, summed over the flows that brought one."""
        running = self._running(op, part)
        out = self._output_part(op, part)
        gradients: list[torch.Tensor | None] = []
        for number, (operand, output) in enumerate(zip(running.part.op.outputs, running.outputs)):
            gradient: torch.Tensor | None = None
            for flow in sorted(self.scratch.arrived.pop((operand.tensor, out), [])):
                more = self._spread(running, number, flow, output)
                gradient = more if gradient is None else gradient + more
            if operand.tensor == self.graph.loss and self.rank == self._first_holder(op, out):
                gradient = torch.ones_like(output)
            gradients.append(gradient)
        return gradients

    def _first_holder(self, op: int, output_part: int) -> int:
        part = next(p for p in range(len(self.devices[op])) if self._output_part(op, p) == output_part)
        return self.devices[op][part]

    def _spread(self, running: Running, number: int, flow: int, output: torch.Tensor) -> torch.Tensor:
        """A flow's gradient, laid into the shape of the output that it came from: the transpose of cutting it."""
        operand = running.part.op.outputs[number]
        dims = running.part.op.values[operand.value].factoring
        hull, gradient = self.flows[flow].hull, self.scratch.flow_grads[flow]
        leaf = output.detach().clone().requires_grad_()
        held = Held(leaf, running.part.output_box(number), dims)
        boxes = self._owned(held, operand.tensor, hull)
        cuts = [held.cut(box, self.dims[operand.tensor]) for box in boxes]
        grads = [_window(gradient, hull, box).reshape(c.shape) for box, c in zip(boxes, cuts)]
        return torch.autograd.grad(cuts, leaf, grads)[0]

    def _owned(self, held: Held, tensor: int, hull: Box) -> list[Box]:
        """The boxes inside the hull that this output part itself made."""
        boxes = _core.project(list(held.box), [list(axis) for axis in held.dims], self.dims[tensor])
        return [both for box in boxes if (both := _intersect(box, hull)) is not None]

    def _finish_backward(self, task: Compute) -> None:
        running = self._running(task.op, task.part)
        _differentiate(running.outputs, self._output_gradients(task.op, task.part), keep=True)

    def _combine_backward(self, task: Combine) -> None:
        op = self.graph.ops[task.op]
        combined = self.scratch.combined[task.op, task.group]
        gradient = combined.grad
        if not op.finishes:
            parts = self.native.groups(task.op)[task.group]
            part = next(p for p in parts if self.devices[task.op][p] == self.rank)
            gradient = self._output_gradients(task.op, part)[0]
        gradient = torch.zeros_like(combined) if gradient is None else gradient
        if len(task.ranks) > 1:
            gradient = self.transport.all_reduce(task.row, gradient, task.ranks)
        self.scratch.combined_grad[task.op, task.group] = gradient

    def _backward(self, task: Compute) -> None:
        running = self._running(task.op, task.part)
        if running.share is None:
            _differentiate(running.outputs, self._output_gradients(task.op, task.part), keep=False)
        else:
            group = self._group(task.op, task.part)
            gradient = self.scratch.combined_grad[task.op, group]
            combine = self.graph.ops[task.op].combine
            if combine is not None and combine.mode == "gather":
                gradient = gradient[self.native.groups(task.op)[group].index(task.part)]
            _differentiate([running.share], [gradient], keep=False)
        for number, leaf in running.leaves.items():
            if leaf.requires_grad:
                self._give(task, number, leaf.grad)
        del self.scratch.running[task.op, task.part]

    def _give(self, task: Compute, number: int, gradient: torch.Tensor | None) -> None:
        """Add an input's gradient to the flows that it came from."""
        index = self.graph.ops[task.op].inputs[number].tensor
        hull, flows = self.native.fetch(task.op, task.part, number)
        for flow, boxes in flows:
            here = self.flows[flow]
            if flow not in self.scratch.flow_grads:
                dtype = getattr(torch, self.graph.tensors[index].dtype)
                self.scratch.flow_grads[flow] = torch.zeros(_lengths(here.hull), dtype=dtype)
                if here.source == self.rank:
                    self.scratch.arrived[index, here.part].append(flow)
            if gradient is None:
                continue
            whole_gradient = gradient.reshape(_lengths(hull))
            for box in boxes:
                _window(self.scratch.flow_grads[flow], here.hull, box).add_(_window(whole_gradient, hull, box))

    # Communication

    def _payload(self, task: Send) -> torch.Tensor:
        flow = self.flows[task.flow]
        if task.backward:
            return self.scratch.flow_grads.pop(task.flow)
        held, dims = self.scratch.held[flow.tensor, flow.part], self.dims[flow.tensor]
        boxes = self._owned(held, flow.tensor, flow.hull)
        if boxes == [flow.hull]:
            return _movable(held.cut(flow.hull, dims).reshape(_lengths(flow.hull)).contiguous())
        payload = held.tensor.new_zeros(_lengths(flow.hull))
        for box in boxes:
            window = _window(payload, flow.hull, box)
            window.copy_(held.cut(box, dims).reshape(window.shape))
        return _movable(payload)

    def _expect(self, task: Receive) -> None:
        flow = self.flows[task.flow]
        dtype = getattr(torch, self.graph.tensors[flow.tensor].dtype)
        wire = torch.uint8 if dtype == torch.bool else dtype
        self.transport.expect(task.row, tuple(_lengths(flow.hull)), wire, task.source)

    def _receive(self, task: Receive) -> None:
        flow, payload = self.flows[task.flow], self.transport.receive(task.row)
        if task.backward:
            self.scratch.flow_grads[task.flow] = payload
            self.scratch.arrived[flow.tensor, flow.part].append(task.flow)
            return
        dims, dtype = self.dims[flow.tensor], getattr(torch, self.graph.tensors[flow.tensor].dtype)
        tensor = payload.to(dtype).reshape(local_shape(flow.hull, dims))
        self.scratch.held[flow.tensor, flow.part] = Held(tensor, flow.hull, dims)

    def _sync(self, task: Sync) -> None:
        windows = [
            self.store.shards[tensor].window(self.store.shards[tensor].gradient(), box)
            for tensor, piece in task.pieces
            for box in self.store.pieces[tensor][piece][1]
        ]
        total = self.transport.all_reduce(task.row, torch.cat([w.reshape(-1) for w in windows]), task.ranks)
        at = 0
        for window in windows:
            window.copy_(total[at : at + window.numel()].view(window.shape))
            at += window.numel()

    def _loss(self) -> torch.Tensor:
        held = self.scratch.held.get((self.graph.loss, 0))
        if held is None or self.rank != self._first_holder(self.loss_op, 0):
            return torch.zeros((), dtype=getattr(torch, self.graph.tensors[self.graph.loss].dtype))
        return held.tensor.detach().clone()


def _lengths(box: Box) -> list[int]:
    return [hi - lo for lo, hi in box]


def _window(tensor: torch.Tensor, hull: Box, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in zip(box, hull))]


def _intersect(a: Box, b: Box) -> Box | None:
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b)]
    return None if any(lo >= hi for lo, hi in both) else both


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _differentiate(outputs: list[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, keep: bool) -> None:
    pairs = [(y, g) for y, g in zip(outputs, gradients) if g is not None and y.requires_grad]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs], retain_graph=keep)
