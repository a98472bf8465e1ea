"""python -m benchmarks.fuzz [SUBJECT ...] [--count N] [--seed N]: damage inputs at random, and print what happens.

Without a subject it damages all kinds: 10,000 checkpoints, and 2,000 of each other kind. The exit status is 1 if any
was read wrongly without an error, or caused an error that Soapstone does not raise itself."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from . import checkpoints, kept, messages, plans, weights
from .tally import Tally, overview

SUBJECTS: dict[str, Callable[[int, int], Tally]] = {
    "checkpoints": checkpoints.fuzz,
    "weights": weights.weights,
    "foreign weights": weights.foreign_weights,
    "strategies": plans.strategies,
    "records of tune": plans.records,
    "topologies": plans.topologies,
    "graphs": plans.graphs,
    "captured graphs": kept.captures,
    "measured times": kept.times,
    "messages": messages.messages,
}
COUNT, COUNTS = 2_000, {"checkpoints": 10_000}


def main(subjects: Sequence[str] = tuple(SUBJECTS), count: int | None = None, seed: int = 0) -> bool:
    """Whether nothing was read wrongly. If there is one subject, the table has a row for each kind of damage."""
    console, tallies = Console(), dict[str, Tally]()
    for subject in subjects:
        start = time.perf_counter()
        tallies[subject] = tally = SUBJECTS[subject](count or COUNTS.get(subject, COUNT), seed)
        console.print(f"{subject}: {time.perf_counter() - start:.0f} s", highlight=False)
        for failure in tally.failures[:20]:
            console.print(failure, markup=False)
    if len(tallies) == 1:
        console.print(*(tally.table(f"{subject}, damaged") for subject, tally in tallies.items()))
    else:
        console.print(overview(tallies))
    return all(tally.is_good for tally in tallies.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Damage inputs at random.")
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], default=list(SUBJECTS))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(not main(given.subjects, given.count, given.seed))
