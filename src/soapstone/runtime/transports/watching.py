"""Notice that another rank is gone, although this one's GPU waits for it.

A kernel that waits for a lost peer never ends, and the host hangs with it in the next synchronisation. So each rank
keeps one receive open, over gloo, from the rank after it: a goodbye, the reason of a failure, or the end of the
connection. Whoever hears of a failure ends its own kernels and passes the reason on, so that it goes round.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from ...errors import LostRankError
from .signs import Signs

ENDLESS = timedelta(days=1000)  # a receive stays open as long as training goes on
GRACE = 3.0  # seconds for what is on its way: a rank that ends early has sent all that the others need
LONGEST = 400  # bytes of a reason
TAG = 1 << 20


class Watch:
    """`is_idle` says whether nothing is on its way; `abort` ends what is. All ranks make theirs together."""

    def __init__(self, signs: Signs, is_idle: Callable[[], bool], abort: Callable[[], None]) -> None:
        self._group = dist.new_group(backend="gloo", timeout=ENDLESS)
        self._signs, self._rank, self._size = signs, signs.rank, signs.size
        self._is_idle, self._abort = is_idle, abort
        rank, size = self._rank, self._size
        self._lost, self._told = "", False
        if size > 1:
            self._note = torch.zeros(LONGEST, dtype=torch.uint8)
            self._work = dist.irecv(self._note, (rank + 1) % size, group=self._group, tag=TAG)
            self._thread = threading.Thread(target=self._listen, name="soapstone watch", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a thread that wakes up while Python shuts down aborts the process

    def raise_if_lost(self) -> None:
        if self._lost:
            raise LostRankError(self._lost)

    def close(self) -> None:
        """Say goodbye, and wait until the watched rank has, or is gone."""
        self.announce("")
        if self._size > 1:
            self._thread.join(GRACE)

    def announce(self, reason: str) -> None:
        """Pass on that this rank has failed, or that it ends."""
        if self._size == 1 or self._told or not dist.is_initialized():
            return
        self._told = True
        raw = reason.encode()[:LONGEST].ljust(LONGEST, b"\0")
        self._sent = torch.frombuffer(bytearray(raw), dtype=torch.uint8)  # kept until it has left
        try:
            self._sending = dist.isend(self._sent, (self._rank - 1) % self._size, group=self._group, tag=TAG)
        except (RuntimeError, ValueError):
            pass  # that rank is gone, too, or the group is being destroyed

    def _listen(self) -> None:
        try:
            assert self._work is not None
            self._work.wait()
            reason = bytes(self._note.tolist()).rstrip(b"\0").decode(errors="replace")
        except RuntimeError:
            reason = self._signs.why(timed_out=False) if dist.is_initialized() else ""
        if reason and dist.is_initialized():  # else it, or this one, has ended in good order
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """Pass it on, and give up once what is on its way has had time to come."""
        self._lost = reason
        self.announce(reason)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and not self._is_idle():
            time.sleep(0.05)
        if not self._is_idle():
            self._abort()
