"""Injects faults into training runs under torchrun. A rank is killed, stopped, delayed or sent SIGTERM, or runs out of
memory or disk; all processes are killed at once; or torchrun is killed or sent SIGTERM. A run recovers from its last
checkpoint, by torchrun's restarts or by being started again, and must end with the weights of a run without faults.

python -m benchmarks.soak --faults 500 --jobs 4    runs until so many faults are on record; may be stopped at any time,
                                                   and goes on by the same command
python -m benchmarks.soak --memory                 the memory of two ranks over 10,000 steps
"""

from __future__ import annotations

import argparse
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from . import memory
from .models import MODELS, weights_without_faults
from .record import Record
from .run import Run
from .training import ROOT

FOLDER = ROOT / "build" / "soak"


def soak(wanted: int, jobs: int, seconds: float, folder: Path) -> None:
    """Several runs at a time, until so many faults are on record or the time is over."""
    folder.mkdir(parents=True, exist_ok=True)
    record, deadline = Record(folder / "results.jsonl"), time.monotonic() + seconds
    for model in MODELS:
        weights_without_faults(model, folder)
    seeds = count(max((row.seed for row in record.outcomes), default=-1) + 1)

    def work() -> None:
        while record.num_faults < wanted and time.monotonic() < deadline:
            run = Run(next(seeds), folder)
            outcome = run.live()
            record.add(outcome)
            print(f"{record.num_faults} faults; {outcome}", flush=True)
            if outcome.is_right:
                shutil.rmtree(run.folder, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as pool:
        for worker in [pool.submit(work) for _ in range(jobs)]:
            worker.result()
    print(record.summary())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500, help="how many are to be on record")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no run begins")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the record, and of checkpoints")
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    asked = parser.parse_args()
    if asked.memory:
        memory.main(asked.folder / "memory")
    else:
        soak(asked.faults, asked.jobs, 60 * asked.minutes, asked.folder)


if __name__ == "__main__":
    main()
