"""Ctrl-C ends a search and keeps what it found, however often it is pressed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """What Ctrl-C does: it calls `stop`; without one it raises KeyboardInterrupt, unless a search inside was stopped by
    an earlier one, so that what that search found can be put away."""

    def __init__(self, stop: Callable[[], None] | None) -> None:
        self.stop, self.happened = stop, False

    def __call__(self, _: int, __: FrameType | None) -> None:
        if self.stop is not None:
            self.stop()
        elif not self.happened:
            raise KeyboardInterrupt
        self.happened = True


@contextmanager
def interrupts(stop: Callable[[], None] | None = None) -> Iterator[Interrupt]:
    """Signals come to the main thread only, so elsewhere there is nothing to do."""
    interrupt = Interrupt(stop)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        if interrupt.happened and isinstance(before, Interrupt):
            before.happened = True
        signal.signal(signal.SIGINT, before)
