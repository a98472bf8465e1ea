"""A folder of checkpoints belongs to one run at a time: a file in it says which, and that it is alive.

The file has the process that writes checkpoints (rank 0's), which others on the same machine can look for, and its
modification time is a heartbeat for all others. Times are compared as the file server has them: with the time of a file
that was just written there, never with a clock of this machine. Files are made with O_EXCL and taken away with rename,
which are atomic on network file systems, too.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from ...errors import RankError, SoapstoneError, printable
from ...files import FILE_MODE, HALF, decode, encode, read_json, write_atomically
from ...processes import RUN_ID, Process, machine, torchrun
from ..transports import Transport

NAME = f"{HALF}run.json"
BEAT = 5.0  # seconds between two heartbeats
SILENCE = 60.0  # seconds without a heartbeat after which a run on another machine is gone
_LOOK = 0.5  # seconds between two looks at another run's heartbeat
_UNREAD = 2.0  # seconds in which a file that is being written must become readable
_SETTLE = 0.1  # seconds after which nobody takes a dead run's file for this one's any more


@dataclass(frozen=True)
class Owner:
    """A run that writes to a folder. Restarts keep `run`; `own` is another for each. `launchers` are the torchruns of
    its ranks: a restart has one of them at least. Once `has_ended` it keeps the folder from nobody, but restarts still
    know it for theirs."""

    run: str
    own: str
    host: str
    process: Process
    since: str
    launcher: str = ""  # torchrun's name for the run
    launchers: tuple[Process, ...] = ()
    has_ended: bool = False

    def __str__(self) -> str:
        name = f", torchrun's {self.launcher!r}," if self.launcher not in ("", "none") else ""
        return f"run {self.run}{name} (process {self.process.number} on {self.host}, since {self.since})"

    def is_restarted_by(self, launchers: Iterable[Process]) -> bool:
        """Whether one of its torchruns has started these ranks, too."""
        return not set(self.launchers).isdisjoint(launchers)


class TakenOverError(RankError):
    """Another run has the folder, to which this one seemed gone."""


class Lease:
    """A folder that is this run's until `release`."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self.is_missed = False  # the file, and that has been said
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Show that this run is alive. Raises TakenOverError where the folder is another run's by now, and makes the
        file again where somebody has removed it."""
        path = self.folder / NAME
        with self._lock:
            try:
                found = _read(path)
                if found is None and _create(path, self.owner):
                    self._miss()
                elif found not in (None, self.owner):
                    raise TakenOverError(
                        f"{self.folder} was taken over by {found}, to which this one seemed gone; end one of them"
                    )
                os.utime(path)
            except FileNotFoundError:
                self._miss()

    def _miss(self) -> None:
        if not self.is_missed:
            _tell(
                f"{self.folder} was removed, or files in it, while this run uses it: older checkpoints may be gone, "
                "and the next one is written there again."
            )
        self.is_missed = True

    def renew(self) -> None:
        """Make sure that the folder is there, and this run's. Raises TakenOverError otherwise."""
        self.beat()
        if self.is_missed:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.beat()
            self.is_missed = False

    def release(self, *, restartable: bool = False) -> None:
        """Leave the folder to others. `restartable` keeps the file, so that a restart of this run knows it."""
        _leases.pop(self.folder, None)
        path = self.folder / NAME
        with self._lock, suppress(OSError, SoapstoneError):
            if _read(path) == self.owner:
                if restartable:
                    write_atomically(path, _encoded(replace(self.owner, has_ended=True)))
                else:
                    path.unlink()


_leases: dict[Path, Lease] = {}  # of this process
_beating: list[tuple[int, threading.Event]] = []  # the process whose thread shows that it is alive, one at most


def hold(folder: Path, launchers: Iterable[Process] = ()) -> Lease:
    """Make a folder this run's, unless it is already. Raises RankError where another run has it that is alive."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    lease = _leases.get(folder)
    if lease is not None and lease.owner.process.number == os.getpid():
        lease.renew()
        return lease
    owner = _take(folder, _this(launchers))
    lease = _leases[folder] = Lease(folder, owner)
    if not _beating or _beating[0][0] != os.getpid():
        _start_beating()
    return lease


def launchers_of(transport: Transport) -> tuple[Process, ...]:
    """The torchruns of all ranks; every rank calls it."""
    own = torchrun()
    rows = transport.exchange(() if own is None else (own.machine, own.number, own.started))
    return tuple(sorted({Process(*row) for row in rows if row}, key=str))


def owner_of(folder: Path, launchers: Iterable[Process] = ()) -> Owner | None:
    """The run that has, or had, a folder. Raises RankError where it is alive, and not started by these torchruns."""
    found = _read(folder / NAME)
    if found is not None and not found.is_restarted_by(launchers):
        _check_gone(folder, found)
    return found


def _this(launchers: Iterable[Process]) -> Owner:
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    process = Process.of(os.getpid())
    name = os.environ.get(RUN_ID, "")
    return Owner(uuid4().hex[:8], uuid4().hex, socket.gethostname(), process, since, name, tuple(launchers))


def _take(folder: Path, own: Owner) -> Owner:
    path, unread, settle = folder / NAME, time.monotonic() + _UNREAD, 0.0
    while True:
        if _create(path, own):
            time.sleep(settle)
            if not settle or _read(path) == own:
                return own
        found = _read(path)
        if found is None:
            if time.monotonic() < unread:
                time.sleep(_LOOK / 10)
            else:
                path.unlink(missing_ok=True)  # nobody writes it any more
            continue
        if found.is_restarted_by(own.launchers) or found.process == own.process:
            own = replace(own, run=found.run)
        else:
            _check_gone(folder, found)
        settle = _SETTLE
        if _remove(path, found) and own.run != found.run and not found.has_ended:
            _tell(f"{folder} was that of {found}, which is gone; it is this run's now.")


def _create(path: Path, owner: Owner) -> bool:
    """Whether there was no such file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(_encoded(owner))
    return True


def _encoded(owner: Owner) -> str:
    return json.dumps(encode(owner))


def _read(path: Path) -> Owner | None:
    """None where there is none, or none that can be read."""
    try:
        found: Owner = decode(Owner, read_json(path, 2**16), str(path))
    except SoapstoneError:
        return None
    return found


def _remove(path: Path, found: Owner) -> bool:
    """Take a file away, unless it has become another run's meanwhile."""
    aside = path.with_name(f"{HALF}run-{uuid4().hex}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    taken = _read(aside)
    if taken is not None and taken != found:
        with suppress(OSError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)
    return taken == found


def _check_gone(folder: Path, found: Owner) -> None:
    """Raise RankError where a run is alive; where only its heartbeat can say so, wait for one."""
    if found.has_ended:
        return
    ended = found.process.has_ended if found.process.machine == machine() else None
    if ended is None:
        ended = _is_silent(folder, found)
    if not ended:
        raise RankError(f"{folder} is in use by {found}; end that run, or name another folder")


def _is_silent(folder: Path, found: Owner) -> bool:
    """Whether no heartbeat comes for as long as one may take."""
    first, waits = _written(folder), False
    while first is not None and _now(folder) - first < SILENCE:
        if not waits:
            _tell(f"{folder} is that of {found}; waiting at most {SILENCE:g} s for a sign of life.")
            waits = True
        time.sleep(_LOOK)
        if _written(folder) != first:
            last = _read(folder / NAME)
            return last is None or last.has_ended
    return True


def _written(folder: Path) -> float | None:
    """When the file was written or touched last. To open it has a network file system ask its server."""
    try:
        with (folder / NAME).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _now(folder: Path) -> float:
    """The time on the machine that keeps the folder's files."""
    probe = folder / f"{HALF}time-{uuid4().hex}"
    try:
        probe.write_bytes(b"0")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _start_beating() -> None:
    """In a thread of its own: a file system may hang."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            for lease in list(_leases.values()):
                with suppress(OSError, SoapstoneError):  # the next save says so
                    lease.beat()

    _beating[:] = [(os.getpid(), over)]
    threading.Thread(target=beat, name="soapstone lease", daemon=True).start()
    atexit.register(_release_all, os.getpid())


def _release_all(process: int) -> None:
    """At the end of the process, which is not a fork of the one that holds them."""
    if process == os.getpid():
        _beating[0][1].set()
        for lease in list(_leases.values()):
            lease.release()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{printable(sentence)}\n")
    sys.stderr.flush()
