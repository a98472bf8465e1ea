"""The resident memory of two ranks while they train, with a checkpoint now and then."""

from __future__ import annotations

import resource
import shutil
from contextlib import suppress
from pathlib import Path

from .models import MODELS
from .training import Training

STEPS, LOOKS, TIMEOUT = 10_000, 10, 3600


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--steps", str(STEPS), "--every", str(STEPS // LOOKS), "--keep", str(2 * LOOKS), "--save", str(folder))
    model = (*MODELS["lenet"], "--batch", "12", "--optimizer", "adamw", "-t", "cpu:1x2")
    with Training(*model, *options) as training:
        for number in range(1, LOOKS + 1):
            if not training.until(lambda number=number: len(list(folder.glob("step-*"))) >= number, TIMEOUT):  # type: ignore[misc]
                break
            sizes = [resident(process) for _, process in sorted(training.processes().items())]
            print(
                f"{number * STEPS // LOOKS:6} steps:",
                ", ".join(f"{size / 2**20:.1f} MiB" for size in sizes),
                flush=True,
            )
        training.end(TIMEOUT)


def resident(process: int) -> int:
    """Bytes; 0 where it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0
