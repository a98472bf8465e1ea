"""One training run, a few faults, and whether it came to the right weights."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import torch

from soapstone.files import HALF
from soapstone.runtime.checkpoints import latest, whole_state

from .models import EVERY, MODELS, STEPS, training_of, weights_without_faults
from .record import Fault, Outcome
from .training import Training, until

FAULTS = 5  # a run
WAITING = 8  # seconds that ranks wait for one another
PATIENCE = 240  # seconds in which a fault must be over
STRATEGIES = ("data", "fsdp", "zero1", "model", "expert", "pipeline")
SIGNALS = {
    "kill": signal.SIGKILL,
    "kill while saving": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "delay": signal.SIGSTOP,
}
LIMITS = {"full disk": resource.RLIMIT_FSIZE, "no memory": resource.RLIMIT_AS}
EVERYTHING, LAUNCHER, SCHEDULER = "all gone", "torchrun killed", "torchrun told to end"
STARTED_AGAIN = (EVERYTHING, LAUNCHER, SCHEDULER)  # faults after which torchrun must be started again
KINDS = (*SIGNALS, *LIMITS, *STARTED_AGAIN)
_FAILED, _RESUMED = "failed (exitcode", re.compile(r"has (\d+) steps, to go on from")
_SAYINGS = ("soapstone: ", "Stopped by ")  # the beginnings of lines that say why a rank ended
_NAMED = {LAUNCHER: "torchrun is gone", SCHEDULER: r"Stopped by SIGTERM after \d+ steps; saved "}


class Run:
    """All of it follows from its seed, but for the moments."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._random, self._common, self.folder = random.Random(seed), folder, folder / f"run-{seed}"
        shutil.rmtree(self.folder, ignore_errors=True)
        choose = self._random.choice
        self._outcome = Outcome(choose(list(MODELS)), choose(STRATEGIES), choose((2, 2, 3)), seed)
        self._kinds = [choose(KINDS) for _ in range(FAULTS)]
        self._moments = sorted(self._random.randrange(0, STEPS - 2 * EVERY, EVERY) for _ in range(FAULTS))
        self._training = self._start()

    def live(self) -> Outcome:
        """Train, while things happen; each comes after some more steps."""
        outcome = self._outcome
        try:
            for kind, moment in zip(self._kinds, self._moments):
                if not self._comes_to(moment):
                    break
                time.sleep(1.5 * self._random.random())
                if kind == "kill while saving":
                    self._training.until(lambda: any(self.folder.glob(f"{HALF}step-*")), 20)
                fault = Fault(kind, self._random.randrange(outcome.ranks), self._step(), is_harmless=kind == "delay")
                if self._happens(fault):
                    outcome.faults = (*outcome.faults, fault)
            with suppress(subprocess.TimeoutExpired):
                outcome.finished = self._training.end(PATIENCE) == 0
            outcome.is_right = outcome.finished and self._is_right()
            outcome.said = "" if outcome.is_right else self._training.output[-4000:]
        finally:
            self._training.kill()
        return outcome

    def _start(self) -> Training:
        more = ("-s", self._outcome.strategy, "--every", str(EVERY), "--timeout", str(WAITING), "--resume")
        model, ranks = self._outcome.model, self._outcome.ranks
        return training_of(model, ranks, self.folder, *more, restarts=2 * FAULTS)

    def _step(self) -> int:
        """Of the newest checkpoint."""
        path = latest(self.folder)
        return int(re.findall(r"step-(\d+)", path.name)[0]) if path is not None else 0

    def _comes_to(self, moment: int) -> bool:
        return self._training.until(lambda: self._step() >= moment and bool(self._training.processes()), PATIENCE)

    def _happens(self, fault: Fault) -> bool:
        """Whether there was a rank for it to happen to; then it is over."""
        start, before = time.monotonic(), len(self._training.output)
        ended = ""  # the output of a torchrun that has ended
        if fault.kind in STARTED_AGAIN:
            ended, before = self._end_all(fault.kind)[before:], 0
            self._training = self._start()
        elif not self._inflict(fault):
            return False
        if fault.kind == "delay":
            time.sleep(WAITING / 4 * self._random.random())
            self._training.send(fault.rank, signal.SIGCONT)
        if fault.kind == "stop":
            self._training.until(lambda: "soapstone: " in self._training.output[before:], PATIENCE)
            self._training.send(fault.rank, signal.SIGKILL)  # as torchrun does after half a minute
        fault.recovered = self._training.until(lambda: self._goes_on(fault, before), PATIENCE) or self._has_ended()
        fault.seconds = time.monotonic() - start
        self._note(fault, ended, self._training.output[before:])
        return True

    def _end_all(self, kind: str) -> str:
        """End torchrun as the kind of fault says, and its ranks if they do not end within seconds. Returns the
        output."""
        training = self._training
        ranks = training.processes().values()
        if kind == EVERYTHING:
            training.kill()
        training.process.send_signal(signal.SIGKILL if kind == LAUNCHER else signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            training.end(PATIENCE)
        ended_alone = until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), 10)
        said = training.output if ended_alone else ""
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        training.kill()
        return said

    def _inflict(self, fault: Fault) -> bool:
        """Whether there was such a rank."""
        if fault.kind in SIGNALS:
            return self._training.send(fault.rank, SIGNALS[fault.kind])
        process = self._training.processes().get(fault.rank)
        return process is not None and limit(process, LIMITS[fault.kind])

    def _goes_on(self, fault: Fault, before: int) -> bool:
        """Whether there are new checkpoints, after a failure where one is to be expected."""
        news, steps = self._training.output[before:], self._step() - fault.at
        if fault.kind == "no memory" and steps > 3 * EVERY:
            return True  # it had all that it needs
        if fault.kind in (*STARTED_AGAIN, "terminate"):  # a last checkpoint was written before
            return _RESUMED.search(news) is not None
        return (fault.is_harmless or _FAILED in news) and (steps > 0 or _RESUMED.search(news) is not None)

    def _has_ended(self) -> bool:
        return self._training.process.poll() == 0

    def _note(self, fault: Fault, before: str, news: str) -> None:
        """Record whether a fault ended a rank and whether a message named it, from the output before torchrun ended, if
        it did, and since."""
        resumed = _RESUMED.search(news)
        fault.resumed = int(resumed[1]) if resumed else fault.at
        if fault.kind == EVERYTHING:
            return
        lines = (before + news).splitlines()
        said = "\n".join(line for line in lines if line.startswith(_SAYINGS))
        fault.ended = fault.kind in STARTED_AGAIN or _FAILED in news
        fault.named = fault.ended and re.search(_NAMED.get(fault.kind, rf"rank {fault.rank}\b"), said) is not None
        fault.said = (before + news)[-2000:] if fault.ended and not fault.named else ""

    def _is_right(self) -> bool:
        """Whether it has the weights of a run to which nothing happened, and all of its steps."""
        wanted, found = weights_without_faults(self._outcome.model, self._common), whole_state(self.folder)
        close = (torch.allclose(found[name], tensor, rtol=1e-6, atol=1e-9) for name, tensor in wanted.items())
        return all(close) and self._step() == STEPS + 3


def limit(process: int, what: int) -> bool:
    """Let a process write no large file, or take no more memory than it has; whether there was such a process."""
    with suppress(OSError, ValueError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
        most = pages * resource.getpagesize() if what == resource.RLIMIT_AS else 1000
        resource.prlimit(process, what, (most, resource.prlimit(process, what)[1]))
        return True
    return False
