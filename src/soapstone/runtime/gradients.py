"""Gradient sync while backward goes on: which sums may begin, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from .plan import Sync
from .store import Store
from .transports import Pending


class Readiness:
    """Counts, in each step, the segments whose backward has still to add to a parameter's gradient. `changed` is
    called when a parameter has all of it, from within backward."""

    def __init__(self, store: Store, users: Mapping[int, int], changed: Callable[[], None]) -> None:
        self._users, self._left, self._changed = dict(users), Counter[int](), changed
        self._running: set[int] = set()
        for tensor, shard in store.shards.items():
            if shard.tensor.requires_grad:
                shard.tensor.register_post_accumulate_grad_hook(self._hook(tensor))  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        self._left = Counter(self._users)

    def enter(self, tensors: Iterable[int]) -> None:
        """A segment's backward begins, which adds to these."""
        self._running = set(tensors)

    def leave(self) -> None:
        for tensor in list(self._running):
            self._done(tensor)

    def has(self, sync: Sync) -> bool:
        return all(self._left[tensor] == 0 for tensor, _ in sync.pieces)

    def _hook(self, tensor: int) -> Callable[[torch.Tensor], None]:
        def accumulated(_: torch.Tensor) -> None:
            if tensor in self._running:
                self._done(tensor)

        return accumulated

    def _done(self, tensor: int) -> None:
        self._running.discard(tensor)
        self._left[tensor] -= 1
        if not self._left[tensor]:
            self._changed()


class Bucket:
    """The gradients that one sync sums: in place where they are one whole tensor, else side by side."""

    def __init__(self, store: Store, sync: Sync) -> None:
        self._windows = [
            shard.window(shard.gradient(), box)
            for tensor, piece in sync.pieces
            for shard in (store.shards[tensor],)
            for box in store.pieces[tensor][piece][1]
        ]
        alone = len(self._windows) == 1 and self._windows[0].is_contiguous()
        self.flat = self._windows[0].view(-1) if alone else torch.cat([w.reshape(-1) for w in self._windows])
        self._in_place = alone

    def take(self, pending: Pending) -> None:
        """Wait for the sum and put it where the gradients are."""
        total = pending()
        if self._in_place and total.data_ptr() == self.flat.data_ptr():
            return
        parts = torch.split(total, [window.numel() for window in self._windows])
        torch._foreach_copy_(self._windows, [part.view(w.shape) for part, w in zip(parts, self._windows)])
