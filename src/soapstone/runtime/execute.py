"""What a rank has for all of its steps: its program, its segments, and where its messages and values go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from .draws import CounterDraws, ReplayDraws
from .gradients import Readiness, gradient_users, synced_tensors
from .keys import BatchInput, Key, Window
from .liveness import ended_sums, last_uses
from .messages import Messages
from .plan import Event, Plan, Run
from .recorded import RecordedSegment, Weighing
from .sharded import SharedWeights
from .store import Store
from .transports import Transport
from .updates import BufferUpdates
from .weave import Weaver

Values = dict[Key, torch.Tensor]
Span = tuple[int, int, int]  # the number of an event, or WAIT, its start and its end (ns)
WAIT = -1


class Executor:
    """One rank, as it plays a device of a plan; `ranks` has the rank of each device."""

    def __init__(
        self, plan: Plan, device: int, ranks: Sequence[int], store: Store, transport: Transport,
        draws: CounterDraws | ReplayDraws, place: torch.device, training: bool = True, compiled: bool = False,
        graphed: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.placement, self.graph = plan, plan.placement, plan.placement.graph
        self.microbatches = plan.placement.microbatches
        self.device, self.ranks, self.store, self.transport, self.draws = device, ranks, store, transport, draws
        self.place, self.is_compiled, self.is_graphed = place, compiled, graphed
        self.spans: list[Span] | None = None  # what happened when, where somebody wants to know
        self.program: list[Event] = plan.program(device) if training else plan.forward_program(device)
        self.differentiated = {event.segment for event in self.program if isinstance(event, Run) and event.backward}
        self.talks = [i for i, event in enumerate(self.program) if not isinstance(event, Run)]
        self.loss_key = self.placement.home(self.graph.loss, 0)
        self.weaver = Weaver(plan.placement, device, store.shards, place)
        self.read = tuple(tuple(slice(*side) for side in self.weaver.needs[i]) for i in self.graph.inputs)
        gathered = {i for i, each in store.sharded.items() if not each.keeps_weights}
        self.segments = {
            number: RecordedSegment(segment, self.weaver, draws, compiled=compiled, graphed=graphed, gathered=gathered)
            for number, segment in enumerate(plan.segments)
            if segment.device == device
        }
        self.shared = _shared_takes(self.segments, self.microbatches)
        self.last_uses = last_uses(self.program, plan.segments, self.placement.kept, self.placement.loss_op)
        self.ended_sums = ended_sums(self.program, plan.start, plan.end)
        self.messages = Messages(plan.placement, self.program, ranks, transport)
        self.updates = BufferUpdates(plan.placement, device, store)
        synced, cut = synced_tensors(self.program), self.weaver.windows.cut
        shards = {i: shard.tensor for i, shard in store.shards.items() if shard.tensor.requires_grad}
        self.unsynced = [shard for i, shard in shards.items() if i not in synced]
        users = gradient_users(self.program, plan.segments, synced | cut)
        self.ready = Readiness({i: shards[i] for i in synced - cut}, users)
        self.weights = SharedWeights(store.sharded, plan.placement, plan.segments, self.program, stays=graphed)
        self._weighing = Weighing(self.weaver, draws)

    def given(self, batches: Sequence[Sequence[torch.Tensor]]) -> list[Values]:
        """What is here of each microbatch when a step begins."""
        state: Values = dict(self.weaver.windows.state().items())
        return [dict(zip(map(BatchInput, self.graph.inputs), batch)) | state for batch in batches]

    @torch.no_grad()
    def weigh(self, given: Sequence[Values]) -> torch.Tensor | None:
        """What this rank adds to the weight of a mean loss, by microbatch, where it must be known from the start."""
        found = [self._weighing.run([values[key] for key in self._weighing.takes]) for values in given]
        own = [weight for weight in found if weight is not None]
        return torch.stack(own) if own else None

    def timed(self, number: int, act: Callable[..., None], *given: Any) -> None:
        start = perf_counter_ns()
        act(*given)
        if self.spans is not None:
            self.spans.append((number, start, perf_counter_ns()))


def _shared_takes(segments: Mapping[int, RecordedSegment], microbatches: int) -> dict[int, list[Key]]:
    """Of what each segment takes, that which others take, too, or other microbatches, and add to the gradient of."""
    takers = Counter(key for segment in segments.values() for key in segment.takes)

    def is_shared(key: Key) -> bool:
        return takers[key] > 1 or (microbatches > 1 and isinstance(key, Window))

    return {number: [key for key in segment.takes if is_shared(key)] for number, segment in segments.items()}
