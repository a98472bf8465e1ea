"""How good predictions are: errors, and pairs of strategies in the right order. The rows lie in JSON files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from soapstone.files import write_atomically
from soapstone.report.plots import plot_predictions
from soapstone.runtime.transports import carried

DIFFER = 1.05  # pairs that are closer are not held against anyone


@carried
@dataclass(frozen=True)
class Row:
    """A strategy: seconds of a step as predicted and measured, those that the busiest device is predicted to compute,
    and a step against DistributedDataParallel's."""

    name: str
    predicted: float
    computing: float
    measured: float = 0.0
    against_ddp: float = 0.0

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    def measured_as(self, seconds: float, against_ddp: float) -> Row:
        return replace(self, measured=seconds, against_ddp=against_ddp)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def in_order(rows: Sequence[Row]) -> tuple[int, int]:
    """How many pairs that differ are measured in the order that was predicted, and how many pairs there are."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if _ratio(a.measured, b.measured) > DIFFER]
    return sum((a.predicted < b.predicted) == (a.measured < b.measured) for a, b in pairs), len(pairs)


def _ratio(a: float, b: float) -> float:
    return max(a, b) / min(a, b)


def show(name: str, found: Mapping[str, Sequence[Row]], picture: Path | None = None) -> None:
    """A table for all models and what it comes to."""
    table = Table(name, "strategy", "predicted", "of it compute", "measured", "error", "step / DDP's", "in order")
    for model, rows in found.items():
        for row in rows:
            table.add_row(
                model if row is rows[0] else "",
                row.name,
                *(f"{seconds * 1e3:.1f} ms" for seconds in (row.predicted, row.computing, row.measured)),
                f"{row.error:+.0%}",
                f"{row.against_ddp:.2f}",
                "{} of {}".format(*in_order(rows)) if row is rows[0] else "",
            )
    console = Console(width=120)
    console.print(table)
    if picture is None:
        return
    console.print(summary(found))
    points = [(model, row.predicted, row.measured) for model, rows in found.items() for row in rows]
    plot_predictions(points, f"{name} ranks: steps as predicted and as measured", picture)
    console.print(f"Written to {picture}.")


def summary(found: Mapping[str, Sequence[Row]]) -> str:
    errors = sorted(abs(row.error) for rows in found.values() for row in rows)
    late = errors[min(round(0.95 * len(errors)), len(errors) - 1)]
    kept, pairs = (sum(numbers) for numbers in zip(*map(in_order, found.values())))
    return (
        f"Mean error {statistics.mean(errors):.0%}, median {statistics.median(errors):.0%}, "
        f"95th percentile {late:.0%}, worst {errors[-1]:.0%}; "
        f"{kept} of {pairs} pairs that differ by more than {DIFFER - 1:.0%} in order "
        f"({kept / max(pairs, 1):.0%})."
    )
