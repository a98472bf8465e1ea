"""Other processes at work while one measures: ranks of one machine share its memory and its clock, and a part that runs
alone is faster than it will be in training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# A small batch against large weights, as in training: it reads them, makes a gradient of their size, and adds it.
_WORK = """
import os, torch
torch.set_num_threads(1)
parent = os.getppid()
x, w, sum = torch.rand(32, 2048), torch.rand(2048, 2048), torch.zeros(2048, 2048)
print("begun", flush=True)
while os.getppid() == parent:
    sum.add_(x.T @ (x @ w))
"""


@contextmanager
def neighbours(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes at work, which end with this."""
    with ExitStack() as stack:
        started = [stack.enter_context(_neighbour()) for _ in range(count)]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield started


@contextmanager
def _neighbour() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", _WORK], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
