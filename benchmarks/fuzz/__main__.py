"""python -m benchmarks.fuzz [SUBJECT ...] [--count N] [--seed N]: damage inputs at random, print what happens.

Subjects: checkpoints (10,000 damaged ones). Without a subject, all of them. The exit status is 1 if anything was read
wrongly without a word, or ended in an error that is none of ours."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from . import checkpoints
from .tally import Tally

SUBJECTS: dict[str, Callable[[int, int], Tally]] = {"checkpoints": checkpoints.fuzz}
COUNT = 10_000


def main(subjects: Sequence[str] = tuple(SUBJECTS), count: int = COUNT, seed: int = 0) -> bool:
    """Whether nothing was read wrongly."""
    console, is_good = Console(), True
    for subject in subjects:
        start = time.perf_counter()
        tally = SUBJECTS[subject](count, seed)
        console.print(tally.table(f"{subject}, damaged {tally.tried:,} times ({time.perf_counter() - start:.0f} s)"))
        for failure in tally.failures[:20]:
            console.print(failure, markup=False)
        is_good &= tally.is_good
    return is_good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Damage inputs at random.")
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], default=list(SUBJECTS))
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(not main(given.subjects, given.count, given.seed))
