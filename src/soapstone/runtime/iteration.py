"""Follow one rank's program, once.

A segment is an autograd graph of its own: what it takes from elsewhere are leaves, and what it gives goes on detached.
Backward, the gradients of these come together at the leaf, whichever segments read it, and begin the backward of the
segment that gave it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from .execute import WAIT, Executor
from .gradients import Bucket
from .keys import Key, Payload, Received, Share, ToOthers, Total, Update
from .plan import Announce, Combine, Event, Gather, Round, Run, Send, Sync
from .shard import own_memory
from .sharded import GatheredBucket, ScatteredBucket
from .transports import Pending

Agreed = Callable[[], torch.Tensor | None]
SCATTERS_AHEAD = 1  # reduce-scatters that may travel while the gradients of the next one are made


def train(executor: Executor, given: dict[Key, torch.Tensor], sync: bool, agreed: Agreed) -> torch.Tensor:
    """Forward, backward and gradient sync of one batch; the loss, or zero where this rank does not hear of it. `agreed`
    raises where a rank has refused its batch, and gives what all ranks `weigh`; it is asked before anything moves."""
    iteration = Iteration(executor, given, sync, agreed)
    executor.ready.begin(iteration.completed)
    executor.weights.begin_step()
    executor.draws.begin()
    try:
        with torch.enable_grad():
            iteration.follow()
        iteration.end()
    finally:
        executor.ready.end()  # which would keep this iteration's tensors
    return iteration.loss()


@torch.no_grad()
def evaluate(executor: Executor, batch: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Forward alone; the parts of the output that this rank has."""
    iteration = Iteration(executor, executor.given(batch), False, lambda: None)
    executor.draws.begin()
    iteration.follow()
    executor.transport.finish()
    return iteration.kept()


class Iteration:
    """What lives for one iteration: values, and what is on its way."""

    def __init__(self, executor: Executor, given: dict[Key, torch.Tensor], sync: bool, agreed: Agreed) -> None:
        self._executor, self._placement, self._graph = executor, executor.placement, executor.graph
        self._sync, self._agreed = sync, agreed
        self._values = given
        self._pending: dict[Key, Pending] = {}  # from other ranks
        self._outputs: dict[int, dict[Key, torch.Tensor]] = {}  # of each segment, with their autograd graph
        self._gradients: dict[ToOthers, Pending] = {}
        self._buckets: list[tuple[Bucket, Pending]] = []
        self._scattered = deque[tuple[ScatteredBucket, Pending]]()
        self._num_scatters = 0
        self._announced: Pending | None = None  # the loss
        self._said = 0  # how many events of the program that are not runs

    def follow(self) -> None:
        executor = self._executor
        for number, event in enumerate(executor.program):
            if isinstance(event, Run):
                if number in executor.ended_sums:
                    left = max(0, self._num_scatters - executor.ended_sums[number])
                    executor.timed(WAIT, self._finish_scatters, left)
                executor.timed(number, self._backward if event.backward else self._forward, event.segment)
            elif number == self._next_talk():
                self._say(number, event)
            for key in executor.last_uses.get(number, ()):
                self._values.pop(key, None)

    def loss(self) -> torch.Tensor:
        return self._own_loss() if self._announced is None else self._announced()

    def kept(self) -> dict[Key, torch.Tensor]:
        """What stays when the iteration is over."""
        here = (self._values.keys() | self._pending.keys()) & self._placement.kept
        return {key: self._value(key).detach() for key in here}

    def end(self) -> None:
        """Wait for the sums of gradients, and set buffers to their next values."""
        store = self._executor.store
        self._agreed()
        self._executor.timed(WAIT, self._finish_syncs)
        own_memory(self._executor.unsynced if self._sync else store.leaves())  # for whoever changes them in place
        self._executor.updates.apply({key: value for key, value in self._values.items() if isinstance(key, Update)})
        if store.counters:
            torch._foreach_add_(list(store.counters.values()), 1)

    def completed(self, tensor: int) -> None:
        """A parameter has all of its gradient."""
        self._executor.weaver.windows.gather(tensor, self._values)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the syncs that come next in the program and have their gradients, while backward goes on."""
        while self._sync and (number := self._next_talk()) is not None:
            event = self._executor.program[number]
            if not isinstance(event, Sync) or not self._executor.ready.has(event):
                return
            self._say(number, event)

    # Segments

    def _forward(self, number: int) -> None:
        segment, weights = self._executor.segments[number], self._executor.weights
        self._executor.timed(WAIT, lambda: weights.take(number, backward=False))
        outputs = segment.run([self._value(key) for key in segment.takes])
        weights.release(number, backward=False)
        if number in self._executor.differentiated:
            self._outputs[number] = outputs
        for key, output in outputs.items():
            self._values[key] = output.detach().requires_grad_(output.requires_grad)
        if self._executor.loss_key in outputs:
            self._seed()

    def _value(self, key: Key) -> torch.Tensor:
        """Something that a segment takes, once it is here; other ranks' is a leaf from now on."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            found = self._awaited(pending)
            self._values[key] = found.requires_grad_(found.is_floating_point() and self._differentiable(key))
            if key == self._executor.loss_key:
                self._seed()
        return self._values[key]

    def _awaited(self, pending: Pending) -> torch.Tensor:
        found: list[torch.Tensor] = []
        self._executor.timed(WAIT, lambda: found.append(pending()))
        return found[0]

    def _differentiable(self, key: Key) -> bool:
        if isinstance(key, Received):
            return self._placement.flows[key.flow].backward >= 0
        assert isinstance(key, Total)
        return self._graph.ops[key.op].backward

    def _seed(self) -> None:
        """Backward begins with the loss's own gradient, on its first device or, where they can, on all of them."""
        loss = self._values[self._executor.loss_key]
        begins = self._placement.has_own_gradient or self._executor.device == self._placement.loss_holder
        if loss.requires_grad and begins:
            loss.grad = torch.ones_like(loss)

    def _backward(self, number: int) -> None:
        executor, segment, outputs = self._executor, self._executor.segments[number], self._outputs.pop(number)
        executor.timed(WAIT, lambda: executor.weights.take(number, backward=True))
        executor.ready.enter(segment.states)
        gradients = [self._gradient(key) for key in outputs]
        segment.differentiate(list(outputs.values()), gradients, lambda: [self._values[key] for key in segment.takes])
        executor.weights.release(number, backward=True)
        own_memory(self._values[key] for key in executor.shared[number])
        executor.ready.leave()

    def _gradient(self, key: Key) -> torch.Tensor | None:
        if isinstance(key, Share) and key.op == self._placement.loss_op and self._placement.has_own_gradient:
            return self._loss_gradient(key)
        if isinstance(key, ToOthers):
            pending = self._gradients.pop(key, None)
            return None if pending is None else self._awaited(pending)
        return self._values[key].grad

    def _loss_gradient(self, share: Share) -> torch.Tensor | None:
        """Of a device's share in the loss: what its own finish says, or one where the shares' sum is the loss."""
        if not self._graph.ops[share.op].finishes:
            return torch.ones_like(self._values[share])
        if not self._placement.is_weighed:
            return self._values[Total(share.op, share.group)].grad
        weight, value = self._agreed(), self._values[share]
        assert weight is not None
        slope = self._executor.weaver.part(share.op, 0).slope(weight.to(value))
        return torch.stack([slope, torch.zeros_like(slope)])

    # Messages

    def _next_talk(self) -> int | None:
        """The number of the next event of the program that is not a run."""
        talks = self._executor.talks
        return talks[self._said] if self._said < len(talks) else None

    def _say(self, number: int, event: Event) -> None:
        if not self._said:  # nothing may be on its way before all ranks take their batch
            self._agreed()
            self._executor.messages.begin()
        self._said += 1
        match event:
            case Round():
                self._executor.timed(number, self._exchange, event)
            case Combine():
                self._combine(event)
            case Sync():
                self._executor.timed(number, self._begin_sync, event)
            case Gather():
                self._executor.timed(number, self._gather, event)
            case Announce():
                self._announced = self._executor.messages.sum_losses(self._known_loss())

    def _exchange(self, event: Round) -> None:
        found = self._executor.messages.exchange(event, [self._payload(send) for send in event.sends])
        for receive, pending in zip(event.receives, found):
            if receive.backward:
                self._gradients[Payload(receive.flow)] = pending
            else:
                self._pending[Received(receive.flow)] = pending

    def _payload(self, event: Send) -> torch.Tensor:
        if not event.backward:
            return self._values[Payload(event.flow)].detach()
        leaf = self._value(Received(event.flow))
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()

    def _combine(self, event: Combine) -> None:
        share, total = Share(event.op, event.group), Total(event.op, event.group)
        messages = self._executor.messages
        if not event.backward:  # the sum may take the tensor's place, which autograd may have kept
            given = self._values[share].detach().clone(memory_format=torch.contiguous_format)
            self._pending[total] = messages.sum(event, given)
            return
        leaf = self._value(total)
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()  # others may read it
        self._gradients[share] = messages.sum(event, gradient)

    def _gather(self, event: Gather) -> None:
        dtype = getattr(torch, self._graph.read_types[event.pieces[0][0]])
        bucket = GatheredBucket(self._executor.store.sharded, event, dtype)
        self._executor.weights.begin(event, bucket, self._executor.messages.gather(event, bucket.flat))

    def _begin_sync(self, event: Sync) -> None:
        if not self._sync:
            return
        store, messages = self._executor.store, self._executor.messages
        if event.scatters:
            scattered = ScatteredBucket(store.sharded, event)
            self._num_scatters += 1
            self._scattered.append((scattered, messages.scatter(event, scattered.rows)))
            self._executor.timed(WAIT, self._finish_scatters, SCATTERS_AHEAD)
        else:
            bucket = Bucket(store, event)
            self._buckets.append((bucket, messages.sum(event, bucket.flat)))

    def _finish_scatters(self, left: int) -> None:
        """Wait for all but the last few, whose memory is then free."""
        while len(self._scattered) > left:
            bucket, pending = self._scattered.popleft()
            bucket.take(pending)

    def _finish_syncs(self) -> None:
        self._finish_scatters(0)
        for bucket, pending in self._buckets:
            bucket.take(pending)
        self._executor.transport.finish()

    def _own_loss(self) -> torch.Tensor:
        return self._value(self._executor.loss_key).detach().clone()

    def _known_loss(self) -> torch.Tensor:
        """The loss on its first device, zero on others: together they are the loss."""
        executor = self._executor
        if executor.device == self._placement.loss_holder:
            return self._own_loss()
        dtype = getattr(torch, self._graph.tensors[self._graph.loss].dtype)
        return torch.zeros((), dtype=dtype, device=executor.place)
