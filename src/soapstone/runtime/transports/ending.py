"""How a rank ends on SIGTERM or Ctrl-C: it says why, even if its main thread is stuck in a message. In a `stoppable`
loop it saves a last checkpoint.

A signal does not reach Python code while the main thread waits inside of torch. So the signal writes to a pipe, and a
thread reads it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ...errors import LostRankError, SoapstoneError
from ...processes import end, is_orphan
from .signs import Signs

GRACE = 1.0  # seconds in which the main thread may end by itself
AGAIN = 1.0  # seconds within which a second Ctrl-C counts as the first: a terminal and a launcher may both send it
_WAKE, _FLUSH = 0, 255  # bytes in the pipe that are not signals
_FLUSHING = 10.0  # seconds within which the thread has surely read what is in the pipe
_OF_A_RANK = re.compile(r"rank (\d+)\b")  # the beginning of an error that one rank raised and all ranks got


class Listener:
    """Receives this process's signals until `close`. While `ask` is set, a signal is passed to it, and the main thread
    has `grace` seconds to end."""

    def __init__(self, signs: Signs | None) -> None:
        self.process = os.getpid()
        self.ask: Callable[[int], None] | None = None
        self.grace = 0.0
        self._signs = signs
        self._error: BaseException | None = None  # the error that the main thread ends with
        self._heard, self._since = 0, 0.0  # the first signal, and when it came
        self._deadline = float("inf")
        self._words: Callable[[], str] = str  # the sentence to write at the deadline
        self._status = 1
        self._is_over, self._is_flushed = False, threading.Event()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = signal.signal(signal.SIGTERM, lambda *_: None), wakeup
        self._thread = threading.Thread(target=self._listen, name="soapstone end", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """From now on signals do what they did before."""
        self._is_over = True
        signal.set_wakeup_fd(self._before[1])
        signal.signal(signal.SIGTERM, self._before[0])
        self._wake()
        self._thread.join(GRACE)

    def fail(self, error: BaseException) -> None:
        """The main thread ends with an error. A signal must not end the process before the error is written."""
        self._error = error
        if self._heard:
            self._end_within(GRACE)

    def expect_end(self, number: int) -> None:
        """The main thread stops because some rank got a signal, and has `grace` seconds to do so."""
        if not self._heard:
            self._heard, self._since = number, time.monotonic()
            self._stop_within(self.grace)

    def forget(self) -> None:
        """The loop has ended: from now on signals are not passed to it. Signals that came earlier still are."""
        self._is_flushed.clear()
        self._wake(_FLUSH)
        if self._thread.is_alive():  # not in a fork
            self._is_flushed.wait(_FLUSHING)
        self.ask, self._deadline = None, float("inf")

    def _wake(self, number: int = _WAKE) -> None:
        with suppress(BlockingIOError):  # the pipe is full, which wakes the thread, too
            os.write(self._writer, bytes([number]))

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while not self._is_over:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._end()
            elif poll.poll(None if left == float("inf") else 1000 * left) and not self._is_over:
                self._hear_or_end(os.read(self._reader, 1)[0])
        os.close(self._reader)
        os.close(self._writer)

    def _hear_or_end(self, number: int) -> None:
        """Handle a signal. If that fails, end the process: without this thread no further signal would have an
        effect."""
        try:
            self._hear(number)
        except Exception as error:
            end(f"{self._rank} was told to end {self._doing}, and failed: {error}", 128 + number)

    def _hear(self, number: int) -> None:
        if number == _FLUSH:
            self._is_flushed.set()
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        if is_orphan():
            end(f"{self._rank} ended {self._doing}: torchrun is gone", 1)
        if self._error is not None:
            self._end_within(GRACE)
        elif self._heard:
            if number == signal.SIGINT and time.monotonic() > self._since + AGAIN:
                end(f"{self._rank} ended {self._doing}: Ctrl-C came a second time", 128 + number)
        elif number == signal.SIGTERM or self.ask is not None:  # else Python raises KeyboardInterrupt
            self._heard, self._since = number, time.monotonic()
            self._begin(number)

    def _begin(self, number: int) -> None:
        """Act on the first signal. Torchrun ends all ranks as soon as one has failed; that failure is the reason
        then."""
        stops = self.ask is not None and self.grace > 0
        if self.ask is not None and stops:
            self.ask(number)
        news = "" if self._signs is None else self._signs.news()
        if self._error is not None:
            self._end_within(GRACE)
        elif stops and self.ask is None:  # the loop has ended meanwhile
            return
        elif stops and not news:
            self._stop_within(self.grace - (time.monotonic() - self._since))
        else:
            name = name_of(number)
            why = f"another rank failed: {news}" if news else f"by {name}, and no rank has failed"
            self._words, self._status = lambda: f"{self._rank} was told to end: {why}", 1 if news else 128 + number
            self._announce(news or f"{self._rank} was ended by {name} {self._doing}")
            self._end_within(GRACE)

    def _announce(self, reason: str) -> None:
        if self._signs is not None:
            self._signs.announce(LostRankError(reason))

    def _stop_within(self, seconds: float) -> None:
        self._words, self._status = self._too_late, 128 + self._heard
        self._end_within(seconds)

    def _too_late(self) -> str:
        name = name_of(self._heard)
        reason = f"{self._rank} was ended by {name} {self._doing}: a last checkpoint takes longer than {self.grace:g} s"
        self._announce(reason)
        return reason

    def _end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        self._wake()

    def _end(self) -> None:
        """The main thread did not end in time."""
        if self._error is not None:
            self._end_with(self._error)
        end(self._words(), self._status)

    def _end_with(self, error: BaseException) -> None:
        """Write the error, unless another rank writes the same one."""
        sentence = str(error) or type(error).__name__
        if isinstance(error, LostRankError) or not self._others_say(sentence):
            end(sentence if isinstance(error, SoapstoneError) else f"{self._rank} failed: {sentence}", 2)
        os._exit(2)

    def _others_say(self, sentence: str) -> bool:
        if self._signs is None:
            return False
        of = _OF_A_RANK.match(sentence)
        note = self._signs.news()
        return (of is not None and int(of[1]) != self._signs.rank) or (
            sentence in note and not note.startswith(f"{self._rank} ")
        )

    @property
    def _rank(self) -> str:
        return "this process" if self._signs is None else f"rank {self._signs.rank}"

    @property
    def _doing(self) -> str:
        return "early" if self._signs is None else self._signs.doing


def name_of(number: int) -> str:
    """The common name of a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


_current: list[Listener] = []  # one at most


def is_listening() -> bool:
    return bool(_current) and _current[0].process == os.getpid()


@contextmanager
def listening(signs: Signs | None) -> Iterator[Listener | None]:
    """The listener of this process; None outside of the main thread, since only that may set signal handlers."""
    if is_listening():
        yield _current[0]
        return
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    listener = Listener(signs)
    _current[:] = [listener]
    try:
        yield listener
    finally:
        _current.clear()
        listener.close()


@contextmanager
def ends_on_sigterm(signs: Signs) -> Iterator[None]:
    """On a signal, end this process with a sentence. After an error the listener stays, because the error has yet to be
    written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = Listener(signs)
    _current[:] = [listener]
    try:
        yield
    except BaseException as error:
        listener.fail(error)
        raise
    _current.clear()
    listener.close()


def _leave_signals() -> None:
    """A fork, such as a DataLoader's worker, must not write its signals to the pipe of its parent."""
    if _current:
        with suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_leave_signals)
