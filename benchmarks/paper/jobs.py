"""Work that is done once: what a job found is kept in a file, and a job that is found there is not run again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from soapstone.files import write_atomically

WORKERS = len(os.sched_getaffinity(0))
Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A function of a module and what it is called with. `alone`: it measures time, so nothing may run beside it."""

    run: Callable[..., Found]
    arguments: Mapping[str, Any]
    alone: bool = False

    @property
    def kind(self) -> str:
        return self.run.__name__

    @property
    def key(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.arguments.items())

    def __call__(self) -> Found:
        return self.run(**self.arguments)


class Results:
    """What jobs found, in a folder: a file for each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, dict[str, Found]] = {}

    def __contains__(self, job: Job) -> bool:
        return job.key in self._kind(job.kind)

    def __getitem__(self, job: Job) -> Found:
        return self._kind(job.kind)[job.key]

    def get(self, job: Job) -> Found | None:
        return self._kind(job.kind).get(job.key)

    def keep(self, job: Job, found: Found) -> None:
        rows = self._kind(job.kind)
        rows[job.key] = found
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows))
        write_atomically(self._path(job.kind), "{\n" + lines + "\n}\n")

    def _kind(self, kind: str) -> dict[str, Found]:
        if kind not in self._known:
            path = self._path(kind)
            self._known[kind] = json.loads(path.read_text()) if path.exists() else {}
        return self._known[kind]

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}.json"


def run_all(jobs: Iterable[Job], results: Results, console: Console) -> None:
    """Run what is not known yet, a job a core, and after them those that must be alone. Ctrl-C keeps what was
    found."""
    wanted = {(job.kind, job.key): job for job in jobs if job not in results}
    together = [job for job in wanted.values() if not job.alone]
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(wanted))

        def keep(job: Job, found: Found) -> None:
            results.keep(job, found)
            progress.update(bar, advance=1, description=f"{job.kind} {job.key}"[:90])

        _run_together(together, keep)
        for job in wanted.values():
            if job.alone:
                keep(job, job())


def _run_together(jobs: list[Job], keep: Callable[[Job, Found], None]) -> None:
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        running: dict[Future[Found], Job] = {pool.submit(job): job for job in jobs}
        try:
            for future in as_completed(running):
                keep(running[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
