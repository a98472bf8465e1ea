"""Signs of life: what each rank is doing, where all others can read it, so that who waits in vain can say for whom.

Every rank writes a sign to torch.distributed's store once a second. Nobody reads them until a message does not come: a
connection that ends says that a rank is gone, but not which, and who hears of it ends, too, and looks just the same.
The first to find out leaves a note in the store, which the others repeat.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ...errors import LostRankError
from ...processes import machine, state_of
from .meeting import own_store
from .orphans import end_without_torchrun

BEAT = 1.0  # seconds between two signs
JOINING = 600.0  # seconds in which all ranks must come
PATIENCE = 4.0  # seconds in which a rank that is gone must be found out
_NOTE = "failure"
_GONE = "was killed, or ended without a word; last seen"


class Sign(NamedTuple):
    """Of one rank. `number` counts its signs."""

    number: int
    host: str
    process: int
    doing: str
    waiting: bool  # for other ranks

    @property
    def state(self) -> str:
        """Of its process, as Linux has it; nothing where that is not known."""
        return state_of(self.process) if self.host == machine() else ""


class Signs:
    """This rank's, and those of all ranks of a world."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.doing, self.waiting = "before its first step", False
        self._own, self._asked = (PrefixStore("soapstone signs", store.clone()) for _ in range(2))
        self._number, self._joined = 0, False  # joined: the world that it is of has begun
        self._looks: list[Callable[[], None]] = []
        self._waits: list[Callable[[], bool]] = []
        self._tellers: list[Callable[[str], None]] = []
        self._closed = threading.Event()
        self._show()
        end_without_torchrun(lambda: f"rank {self.rank} ended {self.doing}")
        self._thread = threading.Thread(target=self._beat, name="soapstone signs", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that wakes up while Python shuts down aborts the process

    def at_each(self, look: Callable[[], None]) -> None:
        """Do something once a second, on the thread that writes the signs."""
        self._looks.append(look)

    def waits_where(self, is_waiting: Callable[[], bool]) -> None:
        """Another way to wait for other ranks than in a call that sets `waiting`."""
        self._waits.append(is_waiting)

    def at_failure(self, tell: Callable[[str], None]) -> None:
        """Do something with the reason where this rank fails, or hears that another has."""
        self._tellers.append(tell)

    def close(self) -> None:
        """This rank ends in good order."""
        if not self._closed.is_set():
            self.doing = "after its end"
            self._closed.set()
            self._thread.join(2 * BEAT)

    def announce(self, error: BaseException) -> str:
        """Leave word of a failure, unless another rank has been first."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, LostRankError):
            reason = f"rank {self.rank} failed {self.doing}: {reason}"
        self._leave(reason)
        for tell in self._tellers:
            tell(reason)
        return reason

    def _leave(self, note: str) -> None:
        _within(BEAT, lambda: None if self._own.check([_NOTE]) else self._own.set(_NOTE, note))

    def why(self, *, timed_out: bool) -> str:
        """Why a message does not come: which rank did what. What is found is left for the others to say, too."""
        found: str | None = _within(3 * PATIENCE, lambda: self._inquire(timed_out))
        if found is None:
            return (
                "rank 0 cannot be reached any more: it has ended or stopped, or so has what started the ranks, or the "
                "network to its machine is down"
            )
        self._leave(found)
        return found

    def news(self) -> str:
        """What is known of a failure by now, found in a second or two; nothing where there is none."""

        def look() -> str:
            time.sleep(BEAT / 2)  # for a note that is being written
            return self._note() or _accused(self._read(), set(), timed_out=False)

        return _within(2 * BEAT, look) or ""

    def _beat(self) -> None:
        try:
            while not self._closed.wait(BEAT) and not self._is_over():
                self._show()
                for look in self._looks:
                    with suppress(RuntimeError):
                        look()
            if not self._is_over():
                self._show()
        except RuntimeError:  # the store is gone, and the world with it
            return

    def _is_over(self) -> bool:
        """Whether the world is no more."""
        self._joined = self._joined or dist.is_initialized()
        return self._joined and not dist.is_initialized()

    def _show(self) -> None:
        self._number += 1
        waiting = self.waiting or any(is_waiting() for is_waiting in self._waits)
        sign = Sign(self._number, machine(), os.getpid(), self.doing, waiting)
        self._own.set(str(self.rank), json.dumps(sign))

    def _inquire(self, timed_out: bool) -> str:
        start, first = time.monotonic(), self._read()
        while True:
            if note := self._note():
                return note
            now, since = self._read(), time.monotonic() - start
            silent = {rank for rank, sign in first.items() if since > 3 * BEAT and sign.number == now[rank].number}
            if found := _accused(now, silent, timed_out):
                return found
            if since > PATIENCE:
                absent = [rank for rank in range(self.size) if rank not in now and rank != self.rank]
                return _unknown(now, absent, timed_out)
            time.sleep(BEAT / 10)

    def _note(self) -> str:
        return str(self._asked.get(_NOTE).decode()) if self._asked.check([_NOTE]) else ""

    def _read(self) -> dict[int, Sign]:
        """The other ranks' last signs."""
        keys = {rank: str(rank) for rank in range(self.size) if rank != self.rank}
        known = {rank: key for rank, key in keys.items() if self._asked.check([key])}
        return {rank: Sign(*json.loads(self._asked.get(key))) for rank, key in known.items()}


def _accused(signs: dict[int, Sign], silent: set[int], timed_out: bool) -> str:
    """The rank that others wait for, and what it does; nothing where that is not certain yet."""
    for rank, sign in signs.items():
        if sign.state in ("X", "Z"):
            return f"rank {rank} {_GONE} {sign.doing}; see its log, and whether its machine ran out of memory"
    for rank, sign in signs.items() if timed_out else ():
        if sign.state in ("T", "t"):
            stopped = f"rank {rank} was stopped {sign.doing}: process {sign.process} does not run"
            return f"{stopped}; end it and start all ranks again"
    if silent:
        first, *more = sorted(silent)
        who = f"ranks {', '.join(map(str, sorted(silent)))} give" if more else f"rank {first} gives"
        where = "their logs, machines and network" if more else "its log, machine and network"
        return f"{who} no sign of life any more, last {signs[first].doing}; see {where}"
    return ""


def _unknown(signs: dict[int, Sign], absent: list[int], timed_out: bool) -> str:
    """What can be said where all ranks are alive that were ever seen."""
    if absent:
        return f"rank {absent[0]} never came; see its log, and that all machines reach the first one"
    if not timed_out:
        return "the connection to another rank broke; see the other ranks' logs"
    for rank, sign in signs.items():
        if not sign.waiting:
            return f"rank {rank} did not come: it is still {sign.doing}; raise the timeout if it is slow, not stuck"
    doing = ", ".join(f"rank {rank} {sign.doing}" for rank, sign in list(signs.items())[:8])
    return f"the ranks wait for one another ({doing}); every rank must make the same calls"


def _within(seconds: float, act: Callable[[], Any]) -> Any:
    """What something gives, or None where it takes longer or the store is gone."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except RuntimeError:
            return

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is no memory for a thread
        return None
    thread.join(seconds)
    return found[0] if found else None


_shared: list[tuple[Any, Signs]] = []  # one at most, with the world that they are of


def shared_signs() -> Signs:
    """Those of torch.distributed's present world; all ranks make them together."""
    world: Any = dist.group.WORLD
    if not _shared or _shared[0][0]() is not world:
        rank, size = dist.get_rank(), dist.get_world_size()
        store = own_store(dist.distributed_c10d._get_default_store(), rank, size, JOINING)
        share(Signs(store, rank, size))
    return _shared[0][1]


def share(signs: Signs) -> None:
    """Make these the signs of torch.distributed's present world."""
    for _, old in _shared:
        old.close()
    _shared[:] = [(ref(dist.group.WORLD), signs)]
    sys.excepthook = _announcing(signs, sys.excepthook)


def _announcing(signs: Signs, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """What does with an error that nobody caught as before, and lets the other ranks know first."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        signs.announce(error)
        otherwise(kind, error, trace)

    return hook
