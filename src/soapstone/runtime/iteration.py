"""Follow one rank's program, once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from .execute import WAIT, Executor, Values
from .gradients import Bucket
from .keys import Key, Update
from .microbatch import Microbatch
from .plan import Announce, Combine, Event, Gather, Receive, Round, Run, Send, Sync
from .shard import own_memory
from .sharded import GatheredBucket, ScatteredBucket
from .shares import Agreed, Shares
from .transports import Pending

SCATTERS_AHEAD = 1  # reduce-scatters that may travel while the gradients of the next one are made


def train(
    executor: Executor,
    given: Sequence[Values],
    sync: bool,
    agreed: Agreed,
    accepts: Callable[[torch.Tensor], bool] | None = None,
) -> torch.Tensor:
    """Forward, backward and gradient sync of one batch, given by microbatch; the loss. `agreed` raises where a rank has
    refused its batch, and gives what all ranks `weigh`; it is asked before anything moves. Buffers stay as they are
    where `accepts` says no to the loss."""
    iteration = Iteration(executor, given, sync, agreed)
    executor.ready.begin(iteration.completed)
    executor.weights.begin_step()
    executor.draws.begin(len(given))
    try:
        with torch.enable_grad():
            iteration.follow()
        iteration.wait()
        loss = iteration.loss()
        if accepts is None or accepts(loss):
            iteration.set_buffers()
    finally:
        executor.ready.end()  # which would keep this iteration's tensors
    return loss


@torch.no_grad()
def evaluate(executor: Executor, batch: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Forward alone; the parts of the output that this rank has."""
    iteration = Iteration(executor, executor.given([batch]), False, lambda: None)
    executor.draws.begin(1)
    iteration.follow()
    executor.transport.finish()
    return iteration.kept()


class Iteration:
    """What lives for one iteration: microbatches, and sums of gradients that are on their way."""

    def __init__(self, executor: Executor, given: Sequence[Values], sync: bool, agreed: Agreed) -> None:
        self._executor, self._placement = executor, executor.placement
        self._sync, self._agreed = sync, agreed
        shares, buffers = Shares(executor.placement, agreed), dict[int, dict[int, torch.Tensor]]()
        self._microbatches = [
            Microbatch(executor, number, values, buffers, shares) for number, values in enumerate(given)
        ]
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
                own = self._microbatches[event.microbatch]
                executor.timed(number, own.backward if event.backward else own.forward, event.segment)
            elif number == self._next_talk():
                self._say(number, event)
            for microbatch, key in executor.last_uses.get(number, ()):
                self._microbatches[microbatch].values.pop(key, None)

    def loss(self) -> torch.Tensor:
        return self._own_loss() if self._announced is None else self._announced()

    def kept(self) -> dict[Key, torch.Tensor]:
        """What stays when an iteration with one microbatch is over."""
        (one,) = self._microbatches
        return one.kept()

    def wait(self) -> None:
        """Wait for the sums of gradients."""
        executor, store = self._executor, self._executor.store
        self._agreed()
        executor.timed(WAIT, self._finish_syncs)
        own_memory(executor.unsynced if self._sync else store.leaves())  # for whoever changes them in place

    def set_buffers(self) -> None:
        """Set buffers to their next values."""
        executor, store = self._executor, self._executor.store
        values = self._microbatches[-1].values
        executor.updates.apply({key: value for key, value in values.items() if isinstance(key, Update)})
        if store.counters:
            torch._foreach_add_(list(store.counters.values()), executor.microbatches)

    def completed(self, tensor: int) -> None:
        """A parameter has all of its gradient."""
        self._executor.weaver.windows.gather(tensor, self._microbatches[0].values)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the syncs that come next in the program and have their gradients, while backward goes on."""
        while self._sync and (number := self._next_talk()) is not None:
            event = self._executor.program[number]
            if not isinstance(event, Sync) or not self._executor.ready.has(event):
                return
            self._say(number, event)

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
                self._microbatches[event.microbatch].combine(event)
            case Sync():
                self._executor.timed(number, self._begin_sync, event)
            case Gather():
                self._executor.timed(number, self._gather, event)
            case Announce():
                self._announced = self._executor.messages.sum_losses(self._known_loss())

    def _exchange(self, event: Round) -> None:
        payloads = [self._of(message).payload(message) for message in event.sends]
        found = self._executor.messages.exchange(event, payloads)
        for message, pending in zip(event.receives, found):
            self._of(message).receive(message, pending)

    def _of(self, message: Send | Receive) -> Microbatch:
        return self._microbatches[message.microbatch]

    def _gather(self, event: Gather) -> None:
        dtype = getattr(torch, self._executor.graph.read_types[event.pieces[0][0]])
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
        losses = [microbatch.loss() for microbatch in self._microbatches]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0)

    def _known_loss(self) -> torch.Tensor:
        """The loss on its first device, zero on others: together they are the loss."""
        executor, graph = self._executor, self._executor.graph
        if executor.device == self._placement.loss_holder:
            return self._own_loss()
        return torch.zeros((), dtype=getattr(torch, graph.tensors[graph.loss].dtype), device=executor.place)
