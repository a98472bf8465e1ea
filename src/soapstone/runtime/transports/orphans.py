"""Ends ranks whose torchrun has ended: nothing else would restart them, or end them together with the others."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from ...processes import end, is_orphan, torchrun

LOOK = 1.0  # seconds between two looks


class _Watch:
    """A thread of its own: the thread that writes heartbeats may wait for the store, which ended with torchrun."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.describe: Callable[[], str] = lambda: "this rank ended"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="soapstone torchrun", daemon=True)
        self._thread.start()
        atexit.register(self._close)  # a thread that wakes up while Python shuts down aborts the process

    def _look(self) -> None:
        while not self._closed.wait(LOOK):
            if is_orphan():
                end(f"{self.describe()}: torchrun is gone", 1)

    def _close(self) -> None:
        self._closed.set()
        self._thread.join(2 * LOOK)


_watches: list[_Watch] = []  # at most one


def end_without_torchrun(describe: Callable[[], str]) -> None:
    """End this process once the torchrun that started it has ended; `describe` gives the beginning of the message.
    Ranks that torchrun did not start may outlive their parent."""
    if torchrun() is None:
        return
    if not _watches or _watches[0].process != os.getpid():  # a fork has no threads
        _watches[:] = [_Watch()]
    _watches[0].describe = describe
