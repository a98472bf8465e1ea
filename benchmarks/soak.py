"""Training runs under torchrun to whose ranks things happen: killed, stopped, delayed, out of memory, with a full disk,
or all at once gone. A run recovers from its last checkpoint, by torchrun's restarts or started again, and must end with
the weights of a run to which nothing happened.

python -m benchmarks.soak --faults 500 --jobs 4    runs until so many faults are on record, in build/soak; go on by the
                                                   same command
python -m benchmarks.soak --memory                 the memory of two ranks over 10,000 steps"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from soapstone.runtime.checkpoints import latest, whole_state

from .faults import ROOT, Training

FOLDER = ROOT / "build" / "soak"
STEPS, EVERY, PER_RUN, TIMEOUT = 240, 10, 5, 8
PATIENCE = 240  # seconds in which a fault must be over


def sizes(**given: int) -> tuple[str, ...]:
    return tuple(word for name, size in given.items() for word in ("--size", f"{name}={size}"))


MODELS: dict[str, tuple[str, ...]] = {
    "lenet": ("lenet", "--batch", "12"),
    "rnnlm": ("rnnlm", "--batch", "12", *sizes(length=3, hidden=24, vocab=60)),
    "gpt2": ("gpt2", "--batch", "12", *sizes(layers=1, width=24, heads=2, length=6, vocab=40)),
}
STRATEGIES = ("data", "fsdp", "zero1", "model", "expert", "pipeline")
KINDS = ("kill", "kill while saving", "stop", "delay", "full disk", "no memory", "terminate", "all gone")
HARMLESS = ("delay",)


@dataclass
class Fault:
    """One, and what came of it."""

    kind: str
    rank: int
    seconds: float = 0.0  # until training went on
    at: int = 0  # the newest checkpoint's step when it happened
    resumed: int = 0  # the step that training went on from
    named: bool = False  # whether another rank's sentence names it
    recovered: bool = False


@dataclass
class Outcome:
    """Of one run."""

    model: str
    strategy: str
    ranks: int
    seed: int
    faults: list[Fault] = field(default_factory=list)
    finished: bool = False
    is_right: bool = False
    said: str = ""  # the end of its output, where it did not finish


class Soaked:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder / f"run-{seed}"
        shutil.rmtree(self.folder, ignore_errors=True)
        model, strategy = self.random.choice(list(MODELS)), self.random.choice(STRATEGIES)
        self.outcome = Outcome(model, strategy, self.random.choice((2, 2, 3)), seed)
        self.environment = {"SOAPSTONE_CACHE": str(folder / "cache"), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}

    def start(self) -> Training:
        ranks = self.outcome.ranks
        options = (
            "-t",
            f"cpu:1x{ranks}",
            "-s",
            self.outcome.strategy,
            "--save",
            str(self.folder),
            "--every",
            str(EVERY),
        )
        more = ("--steps", str(STEPS), "--timeout", str(TIMEOUT), "--resume")
        given = (*MODELS[self.outcome.model], "--dtype", "float64", "--optimizer", "adamw")
        return Training(*given, *options, *more, ranks=ranks, restarts=2 * PER_RUN, environment=self.environment)

    def run(self) -> Outcome:
        """Let things happen, each after some more steps."""
        kinds = [self.random.choice(KINDS) for _ in range(PER_RUN)]
        moments = sorted(self.random.randrange(0, STEPS - 2 * EVERY, EVERY) for _ in kinds)
        training = self.start()
        try:
            for kind, moment in zip(kinds, moments):
                if not self.comes_to(training, moment):
                    break  # it was over before
                time.sleep(self.random.random() * 1.5)
                fault = Fault(kind, self.random.randrange(self.outcome.ranks), at=self.step())
                if kind == "all gone":
                    training.kill()
                    training = self.start()
                    fault.named = True
                elif not self.inject(training, fault):
                    continue
                self.outcome.faults.append(fault)
                if not self.recovers(training, fault):
                    break
            with suppress(subprocess.TimeoutExpired):
                self.outcome.finished = training.end(PATIENCE) == 0
            self.outcome.said = "" if self.outcome.finished else training.output[-4000:]
        finally:
            training.kill()
        return self.outcome

    def comes_to(self, training: Training, moment: int) -> bool:
        return training.until(lambda: self.step() >= moment and bool(training.processes()), PATIENCE)

    def step(self) -> int:
        """Of the newest checkpoint."""
        path = latest(self.folder)
        return int(re.findall(r"step-(\d+)", path.name)[0]) if path is not None else 0

    def inject(self, training: Training, fault: Fault) -> bool:
        """Whether it happened: not where the rank was just not there."""
        match fault.kind:
            case "kill" | "kill while saving":
                if fault.kind == "kill while saving":
                    training.until(lambda: any(self.folder.glob(".soapstone-step-*")), 20)
                return training.send(fault.rank, signal.SIGKILL)
            case "terminate":
                return training.send(fault.rank, signal.SIGTERM)
            case "stop" | "delay":
                return training.send(fault.rank, signal.SIGSTOP)
            case _:
                process = training.processes().get(fault.rank)
                return process is not None and limit(process, fault.kind)

    def recovers(self, training: Training, fault: Fault) -> bool:
        """Whether training goes on, and from where."""
        start, said = time.monotonic(), len(training.output)
        if fault.kind == "delay":
            time.sleep(self.random.random() * TIMEOUT / 4)
            training.send(fault.rank, signal.SIGCONT)
        if fault.kind == "stop":
            training.until(lambda: "soapstone: " in training.output[said:], PATIENCE)
            training.send(fault.rank, signal.SIGKILL)  # as torchrun does after half a minute

        def goes_on() -> bool:
            news = training.output[said:]
            failed = fault.kind in (*HARMLESS, "all gone") or "failed (exitcode" in news
            if fault.kind == "no memory" and self.step() > fault.at + 3 * EVERY:
                return True  # it had all that it needs
            return failed and (self.step() > fault.at or "to go on from" in news)

        fault.recovered = training.until(goes_on, PATIENCE) or training.process.poll() == 0
        news = training.output[said:]
        fault.seconds = time.monotonic() - start
        resumed = re.findall(r"has (\d+) steps, to go on from", news)
        fault.resumed = int(resumed[0]) if resumed else fault.at
        fault.named |= (
            fault.kind in HARMLESS
            or "failed (exitcode" not in news
            or f"rank {fault.rank}" in "".join(re.findall("soapstone: .*", news))
        )
        return fault.recovered

    def check(self) -> None:
        """Compare with a run to which nothing happened."""
        wanted = reference(self.outcome.model, self.folder.parent)
        found = whole_state(self.folder)
        close = [torch.allclose(found[name], tensor, rtol=1e-6, atol=1e-9) for name, tensor in wanted.items()]
        self.outcome.is_right = all(close) and self.step() == STEPS + 3


def limit(process: int, kind: str) -> bool:
    """Let a process write no large file, or take no more memory than it has; whether there was such a process."""
    with suppress(OSError, ValueError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
        what, most = resource.RLIMIT_AS, pages * resource.getpagesize()
        if kind == "full disk":
            what, most = resource.RLIMIT_FSIZE, 1000
        resource.prlimit(process, what, (most, resource.prlimit(process, what)[1]))
        return True
    return False


def reference(model: str, folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run on one rank, made once."""
    path = folder / f"plain-{model}"
    if latest(path) is None:
        options = (
            "--dtype",
            "float64",
            "--optimizer",
            "adamw",
            "-t",
            "cpu:1x1",
            "--steps",
            str(STEPS),
            "--save",
            str(path),
        )
        with Training(
            *MODELS[model], *options, ranks=1, environment={"SOAPSTONE_CACHE": str(folder / "cache")}
        ) as plain:
            if plain.end(PATIENCE) != 0:
                raise SystemExit(plain.output)
    return whole_state(path)


def soak(seed: int, folder: Path) -> Outcome:
    run = Soaked(seed, folder)
    found = run.run()
    if found.finished:
        run.check()
        shutil.rmtree(run.folder, ignore_errors=True)
    return found


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(rows: list[dict[str, Any]]) -> str:
    faults = [fault for row in rows for fault in row["faults"]]
    kinds = Counter(fault["kind"] for fault in faults)
    lines = [
        f"{'fault':20} {'count':>6} {'recovered':>10} {'named':>6} {'steps done again':>17} {'seconds, median':>16}"
    ]
    for kind in (*(kind for kind in KINDS if kinds[kind]), "all"):
        own = [fault for fault in faults if kind in ("all", fault["kind"])]
        again = sum(max(0, EVERY + fault["at"] - fault["resumed"]) for fault in own if fault["kind"] not in HARMLESS)
        seconds = sorted(fault["seconds"] for fault in own)[len(own) // 2] if own else 0.0
        recovered, named = (sum(fault[what] for fault in own) for what in ("recovered", "named"))
        lines.append(f"{kind:20} {len(own):6} {recovered:10} {named:6} {f'at most {again}':>17} {seconds:16.1f}")
    older = sum(fault["resumed"] < fault["at"] for fault in faults)
    finished, right = (sum(row[what] for row in rows) for what in ("finished", "is_right"))
    return "\n".join([
        *lines,
        f"{len(rows)} runs, {finished} finished, {finished - right} of them with wrong numbers; "
        f"{older} whole checkpoints lost.",
    ])  # fmt: skip


def keep_soaking(wanted: int, jobs: int, minutes: float, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, deadline = folder / "results.jsonl", time.monotonic() + 60 * minutes
    for model in MODELS:
        reference(model, folder)
    seeds = iter(range(len(recorded(path)), 10**9))

    def one(seed: int) -> None:
        count = sum(len(row["faults"]) for row in recorded(path))
        if count >= wanted or time.monotonic() > deadline:
            return
        row = asdict(soak(seed, folder))
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        state = "right" if row["is_right"] else "WRONG OR NOT FINISHED"
        print(
            f"{count + len(row['faults'])} faults; {row['model']} {row['strategy']} x{row['ranks']}: {state}",
            flush=True,
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, (next(seeds) for _ in range(2 * wanted))))
    print(summary(recorded(path)))


def memory(steps: int) -> None:
    """Resident memory of two ranks while they train, with a checkpoint now and then."""
    folder = FOLDER / "memory"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--steps", str(steps), "--every", str(steps // 10), "--keep", "20", "--save", str(folder))
    with Training(*MODELS["lenet"], "-t", "cpu:1x2", "--optimizer", "adamw", *options) as training:
        for number in range(1, 11):
            if not training.until(lambda number=number: len(list(folder.glob("step-*"))) >= number, 3600):  # type: ignore[misc]
                break
            sizes = [resident(process) for _, process in sorted(training.processes().items())]
            print(
                f"{number * steps // 10:6} steps:", ", ".join(f"{size / 2**20:.1f} MiB" for size in sizes), flush=True
            )
        training.end(120)


def resident(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--memory", action="store_true")
    asked = parser.parse_args()
    memory(10_000) if asked.memory else keep_soaking(asked.faults, asked.jobs, asked.minutes, asked.folder)
