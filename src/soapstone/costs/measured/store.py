"""Measured numbers on disk, in the user's cache folder. Where that cannot be written, they last as long as the process.

Several processes may write at once, each a transaction at a time; a damaged file is dropped.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ...cache import folder

Numbers = tuple[float, ...]
Result = TypeVar("Result")

PATIENCE = 20.0  # seconds for another process to finish its transaction
_TABLE = """CREATE TABLE IF NOT EXISTS measured
            (machine TEXT, what TEXT, numbers TEXT, PRIMARY KEY (machine, what)) WITHOUT ROWID"""


class Store:
    """What one machine's measurements gave."""

    def __init__(self, machine: str, path: Path | None = None) -> None:
        self.machine = machine
        self.path = folder() / "times.sqlite" if path is None else path

    def read(self) -> dict[str, Numbers]:
        """Everything about this machine."""

        def select(connection: sqlite3.Connection) -> dict[str, Numbers]:
            query = "SELECT what, numbers FROM measured WHERE machine = ?"
            return {what: tuple(json.loads(numbers)) for what, numbers in connection.execute(query, (self.machine,))}

        return self._attempt(select) or {}

    def write(self, found: Mapping[str, Numbers]) -> None:
        rows = [(self.machine, what, json.dumps(numbers)) for what, numbers in found.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?)", rows)

        self._attempt(insert)

    def _attempt(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """The work in a transaction; in a new file where the old one is damaged; None where no file can be had."""
        for _ in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection, connection:
                    connection.execute(_TABLE)
                    return work(connection)
            except (OSError, sqlite3.OperationalError):  # read-only, full, or locked for too long
                return None
            except (sqlite3.DatabaseError, ValueError, TypeError):
                self._drop()
        return None

    def _drop(self) -> None:
        for suffix in ("", "-journal"):
            try:
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            except OSError:
                return
