"""Stops a training loop on a signal, on all ranks after the same step, so that it can save a checkpoint."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from .ending import Listener, is_listening, listening, name_of
from .protocol import Transport
from .signs import shared_signs

GRACE = 20.0  # seconds: torchrun, Slurm and Kubernetes kill processes that still run after 30
PAUSE = 0.2  # seconds within which a signal that was sent to all ranks has reached the last one


class Stop:
    """Whether a loop must stop. Every rank calls it after the same step, and all get the same answer: true if any of
    them got a signal."""

    def __init__(self, transport: Transport, listener: Listener | None) -> None:
        self._transport, self._listener = transport, listener
        self._asked = 0  # the signal that this rank has received
        self._ranks: list[int] = []  # the ranks that have received one
        self.signal = 0  # the signal that the ranks have agreed to stop for

    def ask(self, number: int) -> None:
        """This rank got a signal."""
        self._asked = number

    def __call__(self) -> bool:
        if not self.signal:
            self.signal = max(self._transport.exchange(self._asked))
            if self.signal and self._listener is not None:
                self._listener.expect_end(self.signal)
            if self.signal:
                time.sleep(PAUSE)
                self._ranks = [rank for rank, asked in enumerate(self._transport.exchange(self._asked)) if asked]
        return bool(self.signal)

    @property
    def unanswered(self) -> int:
        """A signal that this rank got after the loop last asked; 0 if there is none."""
        return 0 if self.signal else self._asked

    @property
    def status(self) -> int:
        """The exit status by which schedulers recognize a process that a signal has ended; 0 without a signal."""
        return 128 + self.signal if self.signal else 0

    @property
    def reason(self) -> str:
        """For example "SIGTERM to rank 1"."""
        some = 0 < len(self._ranks) < self._transport.size
        numbers = ", ".join(map(str, self._ranks))
        ranks = f" to rank{'s' * (len(self._ranks) > 1)} {numbers}" if some else ""
        return f"{name_of(self.signal)}{ranks}"


@contextmanager
def stoppable(transport: Transport, grace: float = GRACE) -> Iterator[Stop]:
    """On SIGTERM and Ctrl-C, let the loop inside go on until it next calls the Stop, and then save. A rank that is
    still inside `grace` seconds later ends at once, and so it does on a second Ctrl-C. Without grace, a signal ends the
    rank at once."""
    with listening(shared_signs() if dist.is_initialized() else None) as listener:
        stop = Stop(transport, listener)
        with _asking(listener, stop, grace):
            yield stop
    if stop.unanswered and not is_listening():
        os.kill(os.getpid(), stop.unanswered)


@contextmanager
def _asking(listener: Listener | None, stop: Stop, grace: float) -> Iterator[None]:
    if listener is None:
        yield
        return
    listener.ask, listener.grace = stop.ask, grace
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        listener.forget()
