"""What became of damaged inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rich.table import Table

REFUSED, HARMLESS, SILENT, TRACEBACK = "refused", "harmless", "silent", "traceback"
OUTCOMES = (REFUSED, HARMLESS, SILENT, TRACEBACK)


@dataclass
class Tally:
    """Outcomes by kind of damage. *Refused*: an error in a sentence. *Harmless*: all is as without the damage.
    *Silent*: something else was read, and nothing said. *Traceback*: an error that is none of ours."""

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
        found = Table(title=title)
        found.add_column("damage")
        for name in ("tried", *OUTCOMES):
            found.add_column(name, justify="right")
        for kind in dict.fromkeys(kind for kind, _ in sorted(self.counts)):
            row = [self.counts[kind, outcome] for outcome in OUTCOMES]
            found.add_row(kind, *(f"{count:,}" for count in (sum(row), *row)))
        found.add_row("all", f"{self.tried:,}", *(f"{self.total(outcome):,}" for outcome in OUTCOMES), style="bold")
        return found
