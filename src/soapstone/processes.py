"""Identifies processes, finds out whether they still run, and finds the torchrun that started this process."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import printable

RUN_ID = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks, and does not have it itself
_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1


@cache
def machine() -> str:
    """The scope in which process numbers are unique: one boot of a machine, and one container on it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def state_of(number: int) -> str:
    """Linux's letter for the state of a process on this machine: X if it has ended, and "" if it is not known."""
    return _stat(number, 0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `started` tells it from a later process with the same number; it is empty if the system does not
    say."""

    machine: str
    number: int
    started: str = ""

    @classmethod
    def of(cls, number: int) -> Process:
        """A process of this machine."""
        return cls(machine(), number, _stat(number, 19))

    @property
    def has_ended(self) -> bool | None:
        """Whether it has ended; None if that cannot be seen from this machine."""
        state = state_of(self.number) if self.machine == machine() else ""
        if not state:
            return None
        return state in ("X", "Z") or _stat(self.number, 19) != self.started


def _stat(number: int, field: int) -> str:
    """One of the fields that follow a process's name in /proc/NUMBER/stat; X if there is no such process."""
    try:
        return (_PROC / f"{number}/stat").read_text().rpartition(")")[2].split()[field]
    except (FileNotFoundError, ProcessLookupError):
        return "X" if (_PROC / "self").exists() else ""
    except OSError:
        return ""


@cache
def torchrun() -> Process | None:
    """The torchrun that started this process, perhaps through a shell; None if there is none. Call this early: a
    torchrun that has ended cannot be found any more."""
    if RUN_ID not in os.environ:
        return None
    number = os.getppid()
    while number > 1 and _has_run_id(number):
        parent = _stat(number, 1)
        number = int(parent) if parent.isdecimal() else 0
    return Process.of(number) if number > 0 else None


@cache
def _is_child(process: int) -> bool:
    """Whether torchrun started this process without a shell in between. The argument is this process's number, so that
    a fork gets an answer of its own from the cache."""
    found = torchrun()
    return found is not None and found.number == os.getppid()


def is_orphan() -> bool:
    """Whether the torchrun that started this process has ended."""
    found = torchrun()
    if found is None:
        return False
    return (_is_child(os.getpid()) and os.getppid() != found.number) or found.has_ended is True


def _has_run_id(number: int) -> bool:
    try:
        rows = (_PROC / f"{number}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(row.startswith(f"{RUN_ID}=".encode()) for row in rows)


def end_with_torchrun() -> None:
    """Have the kernel send SIGTERM to this process when its torchrun ends, however that happens.

    The kernel does so when the thread that started this process ends. So this is requested only if that is torchrun's
    main thread: other threads may end long before their process."""
    parent = torchrun()
    if sys.platform != "linux" or parent is None or not _is_child(os.getpid()):
        return
    try:
        children = (_PROC / f"{parent.number}/task/{parent.number}/children").read_text().split()
    except OSError:
        return
    if str(os.getpid()) in children:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if is_orphan():  # torchrun ended before the request
            os.kill(os.getpid(), signal.SIGTERM)


_speaking = threading.Lock()
_said: list[str] = []


def last_words(sentence: str) -> None:
    """Write to standard error why this process ends."""
    with _speaking:
        _said.append(sentence)
        say(sentence)


def end(sentence: str, status: int) -> None:
    """End this process at once, from any thread: with a sentence, unless it has written its last words already."""
    _speaking.acquire()  # never released: the main thread must not write any more
    try:
        if not _said:
            say(sentence)
    finally:  # standard error may be closed
        os._exit(status)


def say(sentence: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"soapstone: {printable(' '.join(sentence.split()))}\n")  # in one write: other ranks write, too
    sys.stderr.flush()
