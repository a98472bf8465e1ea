"""A claim of the paper: what is run for it, and what that comes to in words and in a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .jobs import Job, Results
from .scale import Scale

NOT_RUN = "not run"


@dataclass(frozen=True)
class Ours:
    """Our figures: in the paper's setting, and on today's machines."""

    there: str
    today: str = "-"


@dataclass(frozen=True)
class Claim:
    """`says` is the claim and `theirs` the paper's figure; `differs` tells why ours is another, where it is. `more` is
    text below the picture, such as a table."""

    number: int
    name: str
    says: str
    theirs: str
    differs: str
    jobs: Callable[[Scale], Sequence[Job]]
    ours: Callable[[Scale, Results], Ours]
    draw: Callable[[Scale, Results, Path], None] | None = None
    more: Callable[[Scale, Results], str] = field(default=lambda scale, results: "")

    def known(self, scale: Scale, results: Results) -> bool:
        """Whether all that the claim needs was run."""
        return all(job in results for job in self.jobs(scale))


def spread(ratios: Sequence[float | None], digits: int = 2) -> str:
    """From the least to the greatest, such as 1.02 to 1.57x."""
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if not known:
        return NOT_RUN
    least, most = (f"{ratio:.{digits}f}" for ratio in (known[0], known[-1]))
    return f"{least}x" if least == most else f"{least} to {most}x"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
