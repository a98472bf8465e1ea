"""Gradient sync while backward goes on: which sums may begin, and where they go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from weakref import ref

import torch

from ..parts import lengths
from .keys import State
from .plan import Event, Run, Sync
from .segments import Segment
from .store import Store
from .transports import Pending


class Readiness:
    """Counts, in each step, the segments whose backward has still to add to a parameter's gradient, for those that have
    `users`. One of the `leaves` is counted down as soon as autograd has added to it, any other when the segment's
    backward ends."""

    def __init__(self, leaves: Mapping[int, torch.Tensor], users: Mapping[int, int]) -> None:
        self._users, self._left = dict(users), Counter[int]()
        self._completed: Callable[[int], None] = _ignore
        self._running: set[int] = set()
        for tensor, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(self._hook(tensor))  # type: ignore[no-untyped-call]

    def begin(self, completed: Callable[[int], None]) -> None:
        """A step begins. `completed` is called when a parameter has all of its gradient, from within backward."""
        self._left, self._completed = Counter(self._users), completed

    def end(self) -> None:
        self._completed = _ignore

    def enter(self, tensors: Iterable[int]) -> None:
        """A segment's backward begins, which adds to these."""
        self._running = self._users.keys() & tensors

    def leave(self) -> None:
        for tensor in list(self._running):
            self._done(tensor)

    def has(self, sync: Sync) -> bool:
        return all(self._left[tensor] == 0 for tensor, _ in sync.pieces)

    def _hook(self, tensor: int) -> Callable[[torch.Tensor], None]:
        weak = ref(self)  # Python does not see the circle that would go through a parameter's hooks, and not free it

        def accumulated(_: torch.Tensor) -> None:
            ready = weak()
            if ready is not None and tensor in ready._running:
                ready._done(tensor)

        return accumulated

    def _done(self, tensor: int) -> None:
        self._running.discard(tensor)
        self._left[tensor] -= 1
        if not self._left[tensor]:
            self._completed(tensor)


def _ignore(_: int) -> None:
    pass


def synced_tensors(program: Iterable[Event]) -> set[int]:
    """The parameters whose gradients are summed with other ranks'."""
    return {tensor for event in program if isinstance(event, Sync) for tensor, _ in event.pieces}


def gradient_users(program: Iterable[Event], segments: Sequence[Segment], awaited: Container[int]) -> Counter[int]:
    """In how many segments' backward each of the awaited parameters gets a share of its gradient."""
    runs = (event.segment for event in program if isinstance(event, Run) and event.backward)
    taken = (key.tensor for run in runs for key in segments[run].takes if isinstance(key, State))
    return Counter(tensor for tensor in taken if tensor in awaited)


class Bucket:
    """The gradients that one sync sums, side by side in memory of its own: autograd may still read theirs."""

    def __init__(self, store: Store, sync: Sync) -> None:
        self._places = [
            (shard, box)
            for tensor, piece in sync.pieces
            for shard in (store.shards[tensor],)
            for box in store.pieces[tensor][piece][1]
        ]
        windows = [shard.window(shard.gradient(), box).reshape(-1) for shard, box in self._places]
        self.flat = torch.cat(windows) if len(windows) > 1 else windows[0].clone()
        for shard, box in self._places:
            if list(box) == list(shard.box):
                shard.tensor.grad = None  # until the sum is there

    def take(self, pending: Pending) -> None:
        """Wait for the sum. A whole gradient is where the sum is from now on; a part of one is copied to its place."""
        sizes = [math.prod(lengths(box)) for _, box in self._places]
        for (shard, box), part in zip(self._places, torch.split(pending(), sizes)):
            if list(box) == list(shard.box):
                shard.tensor.grad = part.view(shard.tensor.shape)
            else:
                window = shard.window(shard.own_gradient(), box)
                window.copy_(part.view(window.shape))
