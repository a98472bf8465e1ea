"""Training commands under torchrun, and what can happen to one of their ranks from outside."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
_LOOK = 0.05  # seconds between two looks


class Training:
    """`soapstone train` under torchrun, as a user starts it. Used as a context manager, nothing of it is left."""

    def __init__(
        self, *arguments: str, ranks: int = 2, restarts: int = 0, most_bytes: int | None = None,
        memory: int | None = None, environment: Mapping[str, str] | None = None, launcher: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        start = launcher or ("--standalone", "--nproc-per-node", str(ranks))
        options = (*start, "--max-restarts", str(restarts), "--monitor-interval", "0.1")
        command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "soapstone", "train", *arguments]
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with it
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, **(environment or {})},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: _limit(most_bytes, memory),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    def kill(self) -> None:
        """End torchrun and its ranks, which are in sessions of their own, all at once."""
        ranks = self.processes().values()
        self.process.kill()
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        self.process.wait()

    def processes(self) -> dict[int, int]:
        """The process of each rank that there is now."""
        found: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError, ValueError):
                if int((path / "stat").read_text().rpartition(")")[2].split()[1]) != self.process.pid:
                    continue  # not torchrun's child
                words = (path / "environ").read_bytes().split(b"\0")
                (rank,) = (int(word[5:]) for word in words if word.startswith(b"RANK="))
                found[rank] = int(path.name)
        return found

    def send(self, rank: int, what: signal.Signals) -> bool:
        """Whether there was such a rank to send a signal to."""
        process = self.processes().get(rank)
        with suppress(ProcessLookupError):
            if process is not None:
                os.kill(process, what)
                return True
        return False

    def until(self, is_so: Callable[[], bool], timeout: float) -> bool:
        """Wait until something is so; False where it ends before, or takes too long."""
        return until(is_so, timeout, lambda: self.process.poll() is None)

    def end(self, timeout: float) -> int:
        """Its exit status; raises TimeoutExpired where it hangs."""
        return self.process.wait(timeout)

    @property
    def output(self) -> str:
        """All that was said so far."""
        self._log.seek(0)
        return self._log.read()

    @property
    def sentences(self) -> list[str]:
        """What soapstone complained of."""
        return [line for line in self.output.splitlines() if line.startswith("soapstone: ")]


def until(is_so: Callable[[], bool], timeout: float, goes_on: Callable[[], bool] = lambda: True) -> bool:
    """Wait until `is_so()`. Returns False after `timeout` seconds, or once `goes_on()` is false."""
    deadline = time.monotonic() + timeout
    while not is_so():
        if not goes_on() or time.monotonic() > deadline:
            return False
        time.sleep(_LOOK)
    return True


def _limit(most_bytes: int | None, memory: int | None) -> None:
    """Limits that ranks inherit: on files, as a full disk sets them, and on memory."""
    pairs: tuple[tuple[int, Any], ...] = ((resource.RLIMIT_FSIZE, most_bytes), (resource.RLIMIT_AS, memory))
    for what, most in pairs:
        if most is not None:
            resource.setrlimit(what, (most, most))
