"""What lives for one microbatch: values, their gradients, and what is on its way from other ranks.

A segment is an autograd graph of its own: what it takes from elsewhere are leaves, and what it gives goes on detached.
Backward, the gradients of these come together at the leaf, whichever segments read it, and begin the backward of the
segment that gave it.
"""

from __future__ import annotations

import torch

from .casts import Cast
from .execute import WAIT, Executor, Values
from .keys import Key, Payload, Received, Share, ToOthers, Total, Update
from .plan import Combine, Receive, Send
from .recorded import Edge, edge_of
from .shard import own_memory
from .shares import Shares
from .transports import Pending


class Microbatch:
    """`buffers` is what each segment made of the buffers so far, in the microbatches before."""

    def __init__(
        self,
        executor: Executor,
        number: int,
        given: Values,
        buffers: dict[int, dict[int, torch.Tensor]],
        shares: Shares,
    ) -> None:
        self._executor, self._placement, self._graph = executor, executor.placement, executor.graph
        self.number, self._shares = number, shares
        self.values, self._buffers = given, buffers
        self._pending: dict[Key, Pending] = {}  # from other ranks
        self._edges: dict[int, dict[Key, Edge]] = {}  # of the autograd graph, where backward of a segment begins
        self._gradients: dict[ToOthers, Pending] = {}
        self._casts: dict[int, list[Cast]] = {}  # by segment, of gathered weights

    def kept(self) -> dict[Key, torch.Tensor]:
        """What stays when all is over."""
        here = (self.values.keys() | self._pending.keys()) & self._placement.kept
        return {key: self._value(key).detach() for key in here}

    def loss(self) -> torch.Tensor:
        """What it adds to the loss, on a device that has it."""
        found = self._value(self._executor.loss_key).detach()
        if self._placement.microbatches == 1:
            return found.clone()
        share = self._shares.of(self.number, found)
        return torch.where(share == 0, torch.zeros_like(found), found * share)  # a mean of nothing is none

    # Segments

    def forward(self, number: int) -> None:
        executor = self._executor
        weights = executor.weights
        executor.timed(WAIT, lambda: weights.take(number, self.number, backward=False))
        executor.draws.microbatch = self.number
        outputs = self._run(number)
        casts = executor.segments[number].take_casts()
        weights.release(number, self.number, backward=False)
        if number in executor.differentiated:
            self._casts[number] = casts
            for cast in casts:
                cast.free()
            self._edges[number] = {key: edge_of(output) for key, output in outputs.items()}
        for key, output in outputs.items():
            self.values[key] = output.detach().requires_grad_(output.requires_grad)
        if executor.loss_key in outputs:
            self._seed()

    def _run(self, number: int) -> Values:
        """A segment, whose buffers go on from what it made of them in the microbatch before."""
        executor, segment = self._executor, self._executor.segments[number]
        if self._placement.microbatches == 1:
            return segment.run([self._value(key) for key in segment.takes])
        windows = executor.weaver.windows
        if number not in self._buffers:
            self._buffers[number] = windows.changing(segment.takes)
        self.values.update(windows.of_copies(segment.takes, self._buffers[number]))
        outputs = segment.run([self._value(key) for key in segment.takes])
        updates = {key: value for key, value in outputs.items() if isinstance(key, Update)}
        executor.updates.apply(updates, self._buffers[number])
        return outputs

    def _value(self, key: Key) -> torch.Tensor:
        """Something that a segment takes, once it is here; other ranks' is a leaf from now on."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            found = self._awaited(pending)
            self.values[key] = found.requires_grad_(found.is_floating_point() and self._differentiable(key))
            if key == self._executor.loss_key:
                self._seed()
        return self.values[key]

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
        loss = self.values[self._executor.loss_key]
        begins = self._placement.has_own_gradient or self._executor.device == self._placement.loss_holder
        if loss.requires_grad and begins:
            loss.grad = self._shares.of(self.number, loss)

    def backward(self, number: int) -> None:
        executor, segment, edges = self._executor, self._executor.segments[number], self._edges.pop(number)
        executor.timed(WAIT, lambda: executor.weights.take(number, self.number, backward=True))
        for cast in self._casts.pop(number):
            cast.make()
        executor.draws.microbatch = self.number
        executor.ready.enter(segment.states)
        gradients = [self._gradient(key) for key in edges]
        segment.differentiate(list(edges.values()), gradients, lambda: [self.values[key] for key in segment.takes])
        executor.weights.release(number, self.number, backward=True)
        own_memory(self.values[key] for key in executor.shared[number])
        executor.ready.leave()

    def _gradient(self, key: Key) -> torch.Tensor | None:
        if isinstance(key, Share) and key.op == self._placement.loss_op and self._placement.has_own_gradient:
            return self._loss_gradient(key)
        if isinstance(key, ToOthers):
            pending = self._gradients.pop(key, None)
            return None if pending is None else self._awaited(pending)
        return self.values[key].grad

    def _loss_gradient(self, share: Share) -> torch.Tensor | None:
        """Of a device's share in the loss: what its own finish says, or one where the shares' sum is the loss."""
        if not self._graph.ops[share.op].finishes:
            return self._shares.of(self.number, self.values[share])
        if not self._placement.is_weighed:
            return self.values[Total(share.op, share.group)].grad
        value = self.values[share]
        slope = self._executor.weaver.part(share.op, 0).slope(self._shares.weight.to(value))
        return torch.stack([slope, torch.zeros_like(slope)])

    # Messages

    def receive(self, message: Receive, pending: Pending) -> None:
        """Something is on its way."""
        if message.backward:
            self._gradients[Payload(message.flow)] = pending
        else:
            self._pending[Received(message.flow)] = pending

    def payload(self, message: Send) -> torch.Tensor:
        if not message.backward:
            return self.values[Payload(message.flow)].detach()
        leaf = self._value(Received(message.flow))
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()

    def combine(self, event: Combine) -> None:
        share, total = Share(event.op, event.group), Total(event.op, event.group)
        messages = self._executor.messages
        if not event.backward:  # the sum may take the tensor's place, which autograd may have kept
            given = self.values[share].detach().clone(memory_format=torch.contiguous_format)
            self._pending[total] = messages.sum(event, given)
            return
        leaf = self._value(total)
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()  # others may read it
        self._gradients[share] = messages.sum(event, gradient)
