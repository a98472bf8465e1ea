"""Run one rank's program for one step.

A segment is an autograd graph of its own: what it takes from elsewhere are leaves, and what it gives goes on detached.
Backward, the gradients of these come together at the leaf, whichever segments read it, and begin the backward of the
segment that gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from ..parts import Box, Draws, Function, Recording, lengths, record
from .compiling import Compiler
from .draws import CounterDraws, ReplayDraws
from .gradients import Bucket, Readiness
from .keys import BatchInput, Key, Payload, Received, Share, State, ToOthers, Total, Update, Window
from .listing import shortened
from .plan import Announce, Combine, Event, Plan, Receive, Round, Run, Send, Sync
from .store import Store, own_memory
from .transports import Incoming, Outgoing, Pending, Row, Transport
from .weave import Weaver

Span = tuple[int, int, int]  # the number of an event, or WAIT, its start and its end (ns)
WAIT = -1
WEIGHING = -1  # among the recordings, beside those of the segments
AHEAD = 32  # receives that are posted before their turn: a sender waits for them, but to post them all takes time


class Scratch:
    """What lives for one step."""

    def __init__(self, values: dict[Key, torch.Tensor], agreed: Callable[[], torch.Tensor | None]) -> None:
        self.values = values
        self.pending: dict[Key, Pending] = {}  # from other ranks
        self.outputs: dict[int, list[torch.Tensor]] = {}  # of each segment, with their autograd graph
        self.gradients: dict[ToOthers, Pending] = {}
        self.buckets: list[tuple[Bucket, Pending]] = []
        self.awaited: Iterator[Incoming] = iter(())
        self.loss: Pending | None = None
        self.agreed, self.speaking = agreed, False


class Executor:
    """`agreed`, which `step` takes, raises where a rank has refused its batch, and gives what all ranks `weigh`; it is
    asked before anything moves."""

    def __init__(
        self, plan: Plan, device: int, ranks: Sequence[int], store: Store, transport: Transport,
        draws: CounterDraws | ReplayDraws, place: torch.device, training: bool = True, compiled: bool = False,
        graphed: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.placement, self.graph = plan, plan.placement, plan.placement.graph
        self.device, self.ranks, self.store, self.transport, self.draws = device, ranks, store, transport, draws
        self.place = place
        self.program: list[Event] = plan.program(device) if training else plan.forward_program(device)
        self.weaver = Weaver(plan.placement, device, store.shards, place)
        self.slices = tuple(tuple(slice(*side) for side in self.weaver.needs[i]) for i in self.graph.inputs)
        self.recordings: dict[int, Recording] = {}
        self._gives: dict[int, list[Key]] = {}  # by segment: what its outputs are, once it is recorded
        self._compiler = Compiler(self._ops_of, compiled, graphed) if compiled or graphed else None
        self._weighed = self.weaver.windows.takes(self.weaver.weighing)
        self._takes = {i: self.weaver.windows.takes(s) for i, s in enumerate(plan.segments) if s.device == device}
        takers = Counter(key for takes in self._takes.values() for key in takes)
        self._shared = {i: [key for key in takes if takers[key] > 1] for i, takes in self._takes.items()}
        self.loss_key = self.placement.home(self.graph.loss, 0)
        self._updated = {operand.tensor for op in self.graph.ops for operand in op.updates}
        self._targets: dict[Update, tuple[Box, list[list[int]]]] = {}  # the boxes of buffers that parts update
        self.spans: list[Span] | None = None  # what happened when, where somebody wants to know
        self._speaks = [i for i, event in enumerate(self.program) if not isinstance(event, Run)]
        rounds = [event for event in self.program if isinstance(event, Round)]
        self._incoming = {r.row: self._announced(r) for event in rounds for r in event.receives}  # in order
        self._said, self._sync = 0, True
        synced = {tensor for event in self.program if isinstance(event, Sync) for tensor, _ in event.pieces}
        leaves = [(i, store.shards[i].tensor) for i in synced - self.weaver.windows.cut]
        self._parameters = [parameter for _, parameter in store.parameters()]
        self._unsynced = [shard.tensor for i, shard in store.shards.items() if i not in synced]
        self._ready = Readiness(leaves, self._users(), self._completed)
        self.scratch = Scratch({}, lambda: None)

    def _users(self) -> Counter[int]:
        runs = [e for e in self.program if isinstance(e, Run) and e.backward]
        takes = (key for run in runs for key in self.plan.segments[run.segment].takes)
        return Counter(key.tensor for key in takes if isinstance(key, State))

    def step(
        self, given: dict[Key, torch.Tensor], sync: bool, agreed: Callable[[], torch.Tensor | None]
    ) -> torch.Tensor:
        """Forward, backward and gradient sync of one batch; the loss, or zero where this rank does not hear of it."""
        self.scratch = Scratch(given, agreed)
        self._said, self._sync = 0, sync
        self._ready.begin()
        self.draws.begin()
        with torch.enable_grad():
            self._follow()
        self._end()
        loss = self._loss()
        self.scratch = Scratch({}, lambda: None)
        return loss

    @torch.no_grad()
    def evaluate(self, batch: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Forward alone; the parts of the output that this rank has."""
        self.scratch = Scratch(self.given(batch), lambda: None)
        self._said, self._sync = 0, False
        self.draws.begin()
        self._follow()
        self.transport.finish()
        here = (self.scratch.values.keys() | self.scratch.pending.keys()) & self.placement.kept
        found = {key: self._value(key).detach() for key in here}
        self.scratch = Scratch({}, lambda: None)
        return found

    @torch.no_grad()
    def weigh(self, given: Mapping[Key, torch.Tensor]) -> torch.Tensor | None:
        """What this rank adds to the weight of a mean loss, where backward begins before the loss is whole."""
        if not self.weaver.weighing.tasks:
            return None
        keys = self._weighed
        inputs = [given[key] for key in keys]
        return self._recorded(WEIGHING, lambda xs, _: [self.weaver.weigh(dict(zip(keys, xs)))], inputs)[0]

    def given(self, batch: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """What is here when a step begins."""
        found: dict[Key, torch.Tensor] = dict(zip(map(BatchInput, self.graph.inputs), batch))
        found.update(self.weaver.windows.state().items())
        return found

    def _follow(self) -> None:
        for number, event in enumerate(self.program):
            if isinstance(event, Run):
                self._timed(number, self._backward if event.backward else self._forward, event.segment)
            elif self._said < len(self._speaks) and self._speaks[self._said] == number:
                self._said += 1
                self._say(number, event)

    def _completed(self, tensor: int) -> None:
        """A parameter has all of its gradient."""
        self.weaver.windows.gather(tensor, self.scratch.values)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the syncs that come next in the program and have their gradients, while backward goes on."""
        while self._sync and self._said < len(self._speaks):
            number = self._speaks[self._said]
            event = self.program[number]
            if not isinstance(event, Sync) or not self._ready.has(event):
                return
            self._said += 1
            self._say(number, event)

    def _timed(self, number: int, act: Callable[..., None], *given: Any) -> None:
        start = perf_counter_ns()
        act(*given)
        if self.spans is not None:
            self.spans.append((number, start, perf_counter_ns()))

    def _say(self, number: int, event: Event) -> None:
        if not self.scratch.speaking:
            self._begin_to_speak()
        match event:
            case Round():
                self._timed(number, self._exchange, event)
            case Combine():
                self._combine(event)
            case Sync():
                self._timed(number, self._begin_sync, event)
            case Announce():
                self.scratch.loss = self.transport.all_reduce(
                    Row.LOSS, self._own_loss(), tuple(range(self.transport.size))
                )

    def _begin_to_speak(self) -> None:
        """Once all ranks take their batch; before that nothing may be on its way."""
        self.scratch.agreed()
        self.scratch.speaking = True
        self.scratch.awaited = iter(self._incoming.values())
        for _ in range(AHEAD):
            self._expect()

    # Segments

    def _ops_of(self, number: int) -> str:
        return shortened([self.graph.ops[task.op].name for task in self.plan.segments[number].tasks])

    def _forward(self, number: int) -> None:
        outputs = self._outputs(number)
        self.scratch.outputs[number] = outputs
        for key, output in zip(self._gives[number], outputs, strict=True):
            self.scratch.values[key] = output.detach().requires_grad_(output.requires_grad)
        if self.loss_key in self._gives[number]:
            self._seed()

    def _outputs(self, number: int) -> list[torch.Tensor]:
        """What a segment makes of what it takes."""
        segment, takes = self.plan.segments[number], self._takes[number]
        inputs = [self._value(key) for key in takes]
        if self._compiler is None or number not in self.recordings:

            def run(xs: Sequence[torch.Tensor], draws: Draws | None) -> list[torch.Tensor]:
                made = self.weaver.run(segment, dict(zip(takes, xs)), draws)
                self._gives[number] = list(made)
                return list(made.values())

            outputs = self._recorded(number, run, inputs)
            if self._compiler is not None:
                lasting = (
                    i for i, key in enumerate(takes) if isinstance(key, Window) and key.tensor not in self._updated
                )
                self._compiler.add(number, self.recordings[number], lasting)
            return outputs
        recording = self.recordings[number]
        return self._compiler.attempt(number, "forward", recording, lambda: recording.run(inputs, self.draws))

    def _recorded(self, number: int, function: Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        recording = self.recordings.get(number)
        if recording is not None:
            return recording.run(inputs, self.draws)
        with self.place:
            self.recordings[number], outputs = record(function, inputs, self.draws)
        return outputs

    def _value(self, key: Key) -> torch.Tensor:
        """Something that a segment takes, once it is here; other ranks' is a leaf from now on."""
        pending = self.scratch.pending.pop(key, None)
        if pending is not None:
            found = self._awaited(pending)
            self.scratch.values[key] = found.requires_grad_(found.is_floating_point() and self._differentiable(key))
            if key == self.loss_key:
                self._seed()
        return self.scratch.values[key]

    def _awaited(self, pending: Pending) -> torch.Tensor:
        found: list[torch.Tensor] = []
        self._timed(WAIT, lambda: found.append(pending()))
        return found[0]

    def _differentiable(self, key: Key) -> bool:
        if isinstance(key, Received):
            return self.placement.flows[key.flow].backward >= 0
        assert isinstance(key, Total)
        return self.graph.ops[key.op].backward

    def _seed(self) -> None:
        """Backward begins with the loss's own gradient, on its first device or, where they can, on all of them."""
        loss = self.scratch.values[self.loss_key]
        begins = self.placement.has_own_gradient or self.device == self.placement.loss_holder
        if loss.requires_grad and begins:
            loss.grad = torch.ones_like(loss)

    def _backward(self, number: int) -> None:
        segment, outputs = self.plan.segments[number], self.scratch.outputs.pop(number)
        self._ready.enter(key.tensor for key in segment.takes if isinstance(key, State))
        gradients = [self._gradient(key) for key in self._gives[number]]
        if self._compiler is None:
            _differentiate(outputs, gradients)
        else:
            self._differentiate_compiled(number, outputs, gradients)
        own_memory(self.scratch.values[key] for key in self._shared[number])
        self._ready.leave()

    def _differentiate_compiled(
        self, number: int, outputs: list[torch.Tensor], gradients: list[torch.Tensor | None]
    ) -> None:
        assert self._compiler is not None
        first = [outputs]

        def act() -> None:
            _differentiate(first.pop() if first else self._outputs(number), gradients)

        self._compiler.attempt(number, "backward", self.recordings[number], act)

    def _gradient(self, key: Key) -> torch.Tensor | None:
        if isinstance(key, Share) and key.op == self.placement.loss_op and self.placement.has_own_gradient:
            return self._loss_gradient(key)
        if isinstance(key, ToOthers):
            pending = self.scratch.gradients.pop(key, None)
            return None if pending is None else self._awaited(pending)
        return self.scratch.values[key].grad

    def _loss_gradient(self, share: Share) -> torch.Tensor | None:
        """Of a device's share in the loss: what its own finish says, or one where the shares' sum is the loss."""
        if not self.graph.ops[share.op].finishes:
            return torch.ones_like(self.scratch.values[share])
        if not self.placement.is_weighed:
            return self.scratch.values[Total(share.op, share.group)].grad
        weight, value = self.scratch.agreed(), self.scratch.values[share]
        assert weight is not None
        slope = self.weaver.part(share.op, 0).slope(weight.to(value))
        return torch.stack([slope, torch.zeros_like(slope)])

    # Communication

    def _payload(self, event: Send) -> torch.Tensor:
        if not event.backward:
            return self.scratch.values[Payload(event.flow)].detach()
        leaf = self._value(Received(event.flow))
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()

    def _announced(self, event: Receive) -> Incoming:
        flow = self.placement.flows[event.flow]
        dtype = getattr(torch, self.graph.tensors[flow.tensor].dtype)
        wire = torch.uint8 if dtype == torch.bool else dtype
        return Incoming(event.row, self.ranks[event.source], tuple(lengths(flow.hull)), wire)

    def _expect(self) -> None:
        """Let the transport know of the next message of the program."""
        message = next(self.scratch.awaited, None)
        if message is not None:
            self.transport.expect(message)

    def _exchange(self, event: Round) -> None:
        outgoing = [Outgoing(send.row, self.ranks[send.target], self._payload(send)) for send in event.sends]
        incoming = [self._incoming[receive.row] for receive in event.receives]
        for receive, pending in zip(event.receives, self.transport.round(event.number, outgoing, incoming)):
            self._expect()
            if receive.backward:
                self.scratch.gradients[Payload(receive.flow)] = pending
            else:
                self.scratch.pending[Received(receive.flow)] = pending

    def _combine(self, event: Combine) -> None:
        share, total = Share(event.op, event.group), Total(event.op, event.group)
        ranks = tuple(self.ranks[device] for device in event.devices)
        if not event.backward:  # the sum may take the tensor's place, which autograd may have kept
            given = self.scratch.values[share].detach().clone(memory_format=torch.contiguous_format)
            self.scratch.pending[total] = self.transport.all_reduce(event.row, given, ranks)
            return
        leaf = self._value(total)
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()  # others may read it
        self.scratch.gradients[share] = self.transport.all_reduce(event.row, gradient, ranks)

    def _begin_sync(self, event: Sync) -> None:
        if self._sync:
            bucket = Bucket(self.store, event)
            ranks = tuple(self.ranks[device] for device in event.devices)
            self.scratch.buckets.append((bucket, self.transport.all_reduce(event.row, bucket.flat, ranks)))

    # The end of a step

    def _end(self) -> None:
        self.scratch.agreed()
        self._timed(WAIT, self._finish_syncs)
        own_memory(self._unsynced if self._sync else self._parameters)  # for whoever changes them in place
        self._update({key: value for key, value in self.scratch.values.items() if isinstance(key, Update)})
        if self.store.counters:
            torch._foreach_add_(list(self.store.counters.values()), 1)

    def _finish_syncs(self) -> None:
        for bucket, pending in self.scratch.buckets:
            bucket.take(pending)
        self.transport.finish()

    def _update(self, values: dict[Update, torch.Tensor]) -> None:
        """Set parts' boxes of buffers to their next values."""
        whole: list[Update] = []
        for key, value in values.items():
            if key not in self._targets:
                self._targets[key] = self._target(key)
            box, dims = self._targets[key]
            if self.store.is_whole(key.tensor, box, dims):
                whole.append(key)
            else:
                self.store.update(key.tensor, box, dims, value)
        if whole:
            shards = [self.store.shards[key.tensor].tensor for key in whole]
            torch._foreach_copy_(shards, [values[key].view(shard.shape) for key, shard in zip(whole, shards)])

    def _target(self, key: Update) -> tuple[Box, list[list[int]]]:
        index = next(i for i, op in enumerate(self.graph.ops) for o in op.updates if o.tensor == key.tensor)
        op, part = self.graph.ops[index], self.weaver.part(index, key.part)
        number = next(n for n, operand in enumerate(op.inputs) if operand.tensor == key.tensor)
        return part.input_box(number), [list(axis) for axis in op.values[op.inputs[number].value].factoring]

    def _own_loss(self) -> torch.Tensor:
        if self.device != self.placement.loss_holder:
            return torch.zeros((), dtype=getattr(torch, self.graph.tensors[self.graph.loss].dtype), device=self.place)
        return self._value(self.loss_key).detach().clone()

    def _loss(self) -> torch.Tensor:
        return self._value(self.loss_key).detach().clone() if self.scratch.loss is None else self.scratch.loss()


def _differentiate(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    pairs = [(y, g) for y, g in zip(outputs, gradients) if g is not None and y.requires_grad]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
