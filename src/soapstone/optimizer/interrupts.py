"""Ctrl-C ends a search and keeps what it found, however often it is pressed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupt:
    happened: bool = False


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `stop` instead of raising KeyboardInterrupt. Signals come to the main thread only, so elsewhere there is
    nothing to do."""
    interrupt = Interrupt()

    def handle(_: int, __: FrameType | None) -> None:
        interrupt.happened = True
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
