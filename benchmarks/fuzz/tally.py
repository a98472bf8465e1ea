"""Counts the outcomes of damaged inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.table import Table

REFUSED, HARMLESS, ANOTHER, SILENT, TRACEBACK = "refused", "harmless", "another", "silent", "traceback"
OUTCOMES = (REFUSED, HARMLESS, ANOTHER, SILENT, TRACEBACK)


@dataclass
class Tally:
    """Outcomes by kind of damage. *Refused*: an error in a sentence; an entry of a cache is made again. *Harmless*:
    read as without the damage. *Another*: the damage made another valid file, of a kind that people edit, and it was
    read correctly. *Silent*: read wrongly without an error. *Traceback*: an error that Soapstone does not raise
    itself."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, outcome: str, what: str = "") -> None:
        self.counts[kind, outcome] += 1
        if outcome in (SILENT, TRACEBACK):
            self.failures.append(f"{outcome}: {kind}: {what}")

    def total(self, outcome: str) -> int:
        return sum(count for (_, own), count in self.counts.items() if own == outcome)

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    @property
    def is_good(self) -> bool:
        return not self.failures

    def table(self, title: str) -> Table:
        found = _empty(title, "damage")
        for kind in dict.fromkeys(kind for kind, _ in sorted(self.counts)):
            row = [self.counts[kind, outcome] for outcome in OUTCOMES]
            found.add_row(kind, *(f"{count:,}" for count in (sum(row), *row)))
        found.add_row("all", f"{self.tried:,}", *(f"{self.total(outcome):,}" for outcome in OUTCOMES), style="bold")
        return found


def overview(tallies: Mapping[str, Tally]) -> Table:
    """A row for each subject."""
    found = _empty("damaged at random", "subject")
    for subject, tally in tallies.items():
        found.add_row(subject, f"{tally.tried:,}", *(f"{tally.total(outcome):,}" for outcome in OUTCOMES))
    return found


def _empty(title: str, first: str) -> Table:
    found = Table(title=title)
    found.add_column(first)
    for name in ("tried", *OUTCOMES):
        found.add_column(name, justify="right")
    return found
