"""What happened, on disk as a line of JSON for each run, and in a table."""

from __future__ import annotations

import json
import statistics
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

from soapstone.files import decode

from .models import EVERY


@dataclass
class Fault:
    """One, and what came of it."""

    kind: str
    rank: int
    at: int  # the newest checkpoint's step when it happened
    is_harmless: bool = False  # nothing ends by it
    recovered: bool = False
    resumed: int = 0  # the step that training went on from
    seconds: float = 0.0  # until it did
    ended: bool = False  # a rank ended by it, while others were there to say so
    named: bool = False  # some rank said in a sentence which
    said: str = ""  # where none did


@dataclass
class Outcome:
    """Of one run."""

    model: str
    strategy: str
    ranks: int
    seed: int
    faults: tuple[Fault, ...] = field(default_factory=tuple)
    finished: bool = False
    is_right: bool = False
    said: str = ""  # the end of its output, where it did not finish

    def __str__(self) -> str:
        state = "right" if self.is_right else "WRONG" if self.finished else "NOT FINISHED"
        return f"{self.model} {self.strategy} on {self.ranks}, {len(self.faults)} faults: {state}"


class Record:
    """A file to which runs are added."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self.outcomes: list[Outcome] = [decode(Outcome, json.loads(line), str(path)) for line in lines]

    @property
    def num_faults(self) -> int:
        return sum(len(outcome.faults) for outcome in self.outcomes)

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")

    def summary(self) -> str:
        faults = [fault for outcome in self.outcomes for fault in outcome.faults]
        kinds = sorted({fault.kind for fault in faults})
        rows = [_row(kind, [fault for fault in faults if fault.kind == kind]) for kind in kinds]
        finished, right = (sum(getattr(row, what) for row in self.outcomes) for what in ("finished", "is_right"))
        lost = sum(fault.resumed < fault.at for fault in faults)
        return "\n".join([
            "| fault | count | recovered | ended a rank | named | steps done again, at most | seconds, median |",
            "|---|---|---|---|---|---|---|",
            *rows,
            _row("all", faults),
            f"\n{len(self.outcomes)} runs, {finished} finished, {finished - right} of them with wrong numbers; "
            f"{lost} whole checkpoints lost.",
        ])  # fmt: skip


def _row(kind: str, faults: list[Fault]) -> str:
    again = sum(EVERY + fault.at - fault.resumed for fault in faults if not fault.is_harmless)
    seconds = statistics.median(fault.seconds for fault in faults) if faults else 0.0
    recovered, ended, named = (sum(getattr(f, what) for f in faults) for what in ("recovered", "ended", "named"))
    return f"| {kind} | {len(faults)} | {recovered} | {ended} | {named} | {again} | {seconds:.1f} |"
