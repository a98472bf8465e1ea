"""A training loop that is told to end stops on all ranks after the same step, so that it can save what it has."""

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

GRACE = 20.0  # seconds: torchrun, Slurm and Kubernetes kill what is still there after 30
PAUSE = 0.2  # seconds in which a signal that was sent to all ranks has reached the last


class Stop:
    """Whether a loop is to stop. It is called on every rank after the same step, and all get the same answer: whether
    any of them was told to end."""

    def __init__(self, transport: Transport, listener: Listener | None) -> None:
        self._transport, self._listener = transport, listener
        self._asked = 0  # the signal that this rank has received
        self._ranks: list[int] = []
        self.signal = 0  # that ranks have agreed to stop for

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
        """The signal that this rank got and that the loop did not ask for."""
        return 0 if self.signal else self._asked

    @property
    def status(self) -> int:
        """The exit status that schedulers know for a process that was told to end; 0 where none was."""
        return 128 + self.signal if self.signal else 0

    @property
    def reason(self) -> str:
        """Such as "SIGTERM to rank 1"."""
        some = 0 < len(self._ranks) < self._transport.size
        numbers = ", ".join(map(str, self._ranks))
        ranks = f" to rank{'s' * (len(self._ranks) > 1)} {numbers}" if some else ""
        return f"{name_of(self.signal)}{ranks}"


@contextmanager
def stoppable(transport: Transport, grace: float = GRACE) -> Iterator[Stop]:
    """SIGTERM and Ctrl-C let the loop inside go on until it asks whether to stop, and to save then. What is not done
    `grace` seconds later ends at once, as does a second Ctrl-C. Without grace, a signal ends the rank."""
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
