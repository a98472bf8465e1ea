"""Measured numbers on disk, in the user's cache folder. Where that cannot be written, they last as long as the process.

Several processes may write at once, each a transaction at a time. A damaged file, or one with other tables than ours,
is dropped; a row that is none of ours, or whose checksum is wrong, is passed over. SQLite has none of its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ...cache import folder
from ...files import checksum_of

Numbers = tuple[float, ...]
Result = TypeVar("Result")

PATIENCE = 20.0  # seconds for another process to finish its transaction
LONGEST = 10_000  # characters of a row's numbers
_TABLE = """measured
            (machine TEXT, what TEXT, numbers TEXT, checksum TEXT, PRIMARY KEY (machine, what)) WITHOUT ROWID"""
_PASSING = (  # nothing is wrong with the file, but it cannot be had now
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM,
)  # fmt: skip


class Store:
    """What one machine's measurements gave."""

    def __init__(self, machine: str, path: Path | None = None) -> None:
        self.machine = machine
        self.path = folder() / "times.sqlite" if path is None else path

    def read(self) -> dict[str, Numbers]:
        """Everything about this machine."""

        def select(connection: sqlite3.Connection) -> dict[str, Numbers]:
            if list(connection.execute("PRAGMA quick_check(1)")) != [("ok",)]:
                raise sqlite3.DatabaseError("it is damaged")
            query = "SELECT what, numbers, checksum FROM measured WHERE +machine = ?"  # also rows out of order
            rows = connection.execute(query, (self.machine,))
            found = {what: _numbers(text) for what, text, said in rows if said == self._checksum(what, text)}
            return {what: numbers for what, numbers in found.items() if isinstance(what, str) and numbers is not None}

        return self._attempt(select) or {}

    def write(self, found: Mapping[str, Numbers]) -> None:
        texts = {what: json.dumps(numbers) for what, numbers in found.items()}
        rows = [(self.machine, what, text, self._checksum(what, text)) for what, text in texts.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?)", rows)

        self._attempt(insert)

    def _checksum(self, what: object, text: object) -> str | None:
        """The checksum of a row; None if the row is not one that this class writes."""
        if not isinstance(what, str) or not isinstance(text, str):
            return None
        return checksum_of([self.machine, what, text])

    def _attempt(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """The work in a transaction; in a new file where the old one is damaged; None where no file can be had."""
        for _ in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._make_room()
                with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection, connection:
                    connection.text_factory = _text
                    _prepare(connection)
                    return work(connection)
            except OSError:
                return None
            except sqlite3.Error as error:
                if not self._is_damaged(error):
                    return None
                self._drop()
        return None

    def _is_damaged(self, error: sqlite3.Error) -> bool:
        """Whether what went wrong is the file's fault; also where it says itself that nobody may write to it."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code == sqlite3.SQLITE_READONLY:
            return os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        return code & 0xFF not in _PASSING

    def _make_room(self) -> None:
        """Remove what is no file: sqlite would wait for the other end of a pipe. Raises OSError where it cannot be."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        except OSError:  # links in a circle
            mode = self.path.lstat().st_mode
        if not stat.S_ISREG(mode):
            self.path.unlink()

    def _drop(self) -> None:
        for suffix in ("", "-journal", "-wal", "-shm"):
            try:
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            except OSError:
                return


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the table. Raises sqlite3.DatabaseError where the file has others: a view may have no end."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE}")
    if list(connection.execute("SELECT sql FROM sqlite_master")) != [(f"CREATE TABLE {_TABLE}",)]:
        raise sqlite3.DatabaseError("it is none of ours")


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _numbers(text: object) -> Numbers | None:
    """A row's numbers; None where it has none."""
    try:
        found = json.loads(text) if isinstance(text, str) and len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(type(number) in (int, float) for number in found):
        return None
    return tuple(found)
