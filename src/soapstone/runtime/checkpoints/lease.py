"""The lease on a folder of checkpoints: a file in the folder that names the one run that may use it.

The file names the process that writes checkpoints (rank 0's), which runs on the same machine can look up. Its
modification time is a heartbeat for runs on other machines. It is compared with the modification time of a file that
was just written there, never with a clock of this machine, so that both times come from the file server. The file is
created with O_EXCL and removed by renaming it, which is atomic on network file systems, too.
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
from .folders import remove_halves

NAME = f"{HALF}run.json"
BEAT = 5.0  # seconds between two heartbeats
SILENCE = 60.0  # seconds without a heartbeat after which a run on another machine counts as dead
_LOOK = 0.5  # seconds between two looks at another run's heartbeat
_UNREAD = 2.0  # seconds in which a file that is being written must become readable
_SETTLE = 0.1  # seconds after a takeover within which another run may still rename this run's file by mistake


@dataclass(frozen=True)
class Owner:
    """A run that writes to a folder. Restarts keep `run`, and have an `own` of their own. `launchers` are the torchrun
    processes of its ranks; a restart has at least one of them. Once it `has_ended`, any run may take the folder, but a
    restart still recognizes it."""

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
        """Whether one of its launchers is among these."""
        return not set(self.launchers).isdisjoint(launchers)


class TakenOverError(RankError):
    """Another run took over the folder, since this one seemed dead."""


class Lease:
    """A folder that this run may use until `release`."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self.is_missed = False  # the file was found to be missing, and the user was warned
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Show that this run is alive. Creates the file again if it was removed. Raises TakenOverError if another run
        has taken over the folder."""
        path = self.folder / NAME
        with self._lock:
            try:
                found = _read(path)
                if found is None and _create(path, self.owner):
                    self._miss()
                elif found not in (None, self.owner):
                    raise TakenOverError(
                        f"{self.folder} was taken over by {found}, since this run seemed dead; end one of the two"
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
        """Make sure that the folder exists and is this run's. Raises TakenOverError if another run has taken it
        over."""
        self.beat()
        if self.is_missed:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.beat()
            self.is_missed = False

    def release(self, *, restartable: bool = False) -> None:
        """Give up the folder. `restartable` keeps the file, so that a restart of this run recognizes it."""
        _leases.pop(self.folder, None)
        path = self.folder / NAME
        with self._lock, suppress(OSError, SoapstoneError):
            if _read(path) == self.owner:
                if restartable:
                    write_atomically(path, _encoded(replace(self.owner, has_ended=True)))
                else:
                    path.unlink()


_leases: dict[Path, Lease] = {}  # of this process
_beating: list[tuple[int, threading.Event]] = []  # the process whose thread writes heartbeats, one at most


def hold(folder: Path, launchers: Iterable[Process] = ()) -> Lease:
    """Take a folder for this run, unless this run has it already, and remove what incomplete saves left there. Raises
    RankError if a live run has it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    lease = _leases.get(folder)
    if lease is not None and lease.owner.process.number == os.getpid():
        lease.renew()
    else:
        lease = _leases[folder] = Lease(folder, _take(folder, _this(launchers)))
        if not _beating or _beating[0][0] != os.getpid():
            _start_beating()
    remove_halves(folder)  # no live run writes them, since the folder is this run's
    return lease


def launchers_of(transport: Transport) -> tuple[Process, ...]:
    """The torchrun processes of all ranks; every rank calls it."""
    own = torchrun()
    rows = transport.exchange(() if own is None else (own.machine, own.number, own.started))
    return tuple(sorted({Process(*row) for row in rows if row}, key=str))


def owner_of(folder: Path, launchers: Iterable[Process] = ()) -> Owner | None:
    """The run that has, or had, a folder. Raises RankError if it is alive, unless one of these launchers started it."""
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
                path.unlink(missing_ok=True)  # whoever created it died before it was written
            continue
        if found.is_restarted_by(own.launchers) or found.process == own.process:
            own = replace(own, run=found.run)
        else:
            _check_gone(folder, found)
        settle = _SETTLE
        if _remove(path, found) and own.run != found.run and not found.has_ended:
            _tell(f"{folder} belonged to {found}, which has ended; it belongs to this run now.")


def _create(path: Path, owner: Owner) -> bool:
    """Create the file. False if there is one already."""
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
    """The owner that the file names; None if the file is missing or cannot be read."""
    try:
        found: Owner = decode(Owner, read_json(path, 2**16), str(path))
    except SoapstoneError:
        return None
    return found


def _remove(path: Path, found: Owner) -> bool:
    """Remove the file of a dead run. False if it has become another run's meanwhile."""
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
    """Raise RankError if a run is alive. On another machine only a heartbeat shows that, so wait for one."""
    if found.has_ended:
        return
    ended = found.process.has_ended if found.process.machine == machine() else None
    if ended is None:
        ended = _is_silent(folder, found)
    if not ended:
        raise RankError(f"{folder} is in use by {found}; end that run, or name another folder")


def _is_silent(folder: Path, found: Owner) -> bool:
    """Whether the run gives no heartbeat for `SILENCE` seconds."""
    first, waits = _written(folder), False
    while first is not None and _now(folder) - first < SILENCE:
        if not waits:
            _tell(f"{folder} belongs to {found}; waiting at most {SILENCE:g} s for a sign of life.")
            waits = True
        time.sleep(_LOOK)
        if _written(folder) != first:
            last = _read(folder / NAME)
            return last is None or last.has_ended
    return True


def _written(folder: Path) -> float | None:
    """When the file was last written or touched. Opening it makes a network file system ask its server."""
    try:
        with (folder / NAME).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _now(folder: Path) -> float:
    """The present time on the file server, by a file that is written there."""
    probe = folder / f"{HALF}time-{uuid4().hex}"
    try:
        probe.write_bytes(b"0")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _start_beating() -> None:
    """Write heartbeats in a thread of their own, since a file system may hang."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            for lease in list(_leases.values()):
                with suppress(OSError, SoapstoneError):  # the next save reports it
                    lease.beat()

    _beating[:] = [(os.getpid(), over)]
    threading.Thread(target=beat, name="soapstone lease", daemon=True).start()
    atexit.register(_release_all, os.getpid())


def _release_all(process: int) -> None:
    """At the end of a process, unless it is a fork of the one that has the leases."""
    if process == os.getpid():
        _beating[0][1].set()
        for lease in list(_leases.values()):
            lease.release()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{printable(sentence)}\n")
    sys.stderr.flush()
