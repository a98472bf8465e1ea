"""The end of a rank that is told to end: with a sentence, although its main thread may be stuck in a message."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import LostRankError
from .signs import Signs

GRACE = 1.0  # seconds in which the main thread may end by itself


@contextmanager
def ends_on_sigterm(signs: Signs) -> Iterator[None]:
    """Torchrun ends all ranks as soon as one has failed: say which, and end. A signal does not reach Python code while
    the main thread waits inside of torch, so a thread reads what the signal writes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    over = threading.Event()
    threading.Thread(target=_listen, args=(reader, signs, over), name="soapstone end", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before[1])
        signal.signal(signal.SIGTERM, before[0])
        os.close(writer)  # which ends the thread


def _listen(reader: int, signs: Signs, over: threading.Event) -> None:
    while (heard := os.read(reader, 1)) and heard[0] != signal.SIGTERM:
        pass
    if not heard:
        return
    try:
        news = signs.news()
        signs.announce(LostRankError(news or f"rank {signs.rank} was ended by SIGTERM {signs.doing}"))
        if not over.wait(GRACE):
            why = f"another rank failed: {news}" if news else "by SIGTERM, and no rank has failed"
            sys.stderr.write(f"soapstone: rank {signs.rank} was told to end: {why}\n")
            sys.stderr.flush()
    finally:
        if not over.is_set():
            os._exit(1)
