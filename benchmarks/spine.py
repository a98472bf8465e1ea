"""What the road costs, against what it stands on: capture against torch.export, the core's timeline against the plain
Python one, and a step on one rank against eager PyTorch. Medians of interleaved rounds, one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import soapstone as ss
from soapstone.runtime import ThreadTransport
from tests.support.models import CASES, Case
from tests.support.reference import ReferenceTask, play_reference

ROUNDS = 7


def interleaved(*functions: Callable[[], object]) -> list[float]:
    """The median seconds of each function, timed in turns so that a busy machine slows all of them alike."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS + 1):
        for function, found in zip(functions, times):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [statistics.median(found[1:]) for found in times]


def export_only(work: ss.Workload) -> None:
    """Model and loss through torch.export, as capture sends them there."""

    class Training(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = work.model

        def forward(self, *batch: torch.Tensor) -> torch.Tensor:
            return work.compute_loss(*batch)

    torch.export.export(Training(), work.batch, strict=False)


def capture_times(case: Case) -> list[float]:
    work = case.workload()
    return interleaved(lambda: ss.capture(work), lambda: export_only(work))


def play_times(case: Case) -> tuple[int, list[float]]:
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("p100:2x4")
    sim = ss.simulate(graph, topology, ss.baselines.random(graph, topology, seed=1))
    native = [sim.native.task(i) for i in range(len(sim.tasks))]
    tasks = [ReferenceTask(t.key, tuple(t.holds), t.latency, tuple(t.after)) for t in native]
    return len(tasks), interleaved(sim.native.play, lambda: play_reference(tasks))


def step_times(case: Case) -> list[float]:
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("cpu:1x1")
    work, batch = case.workload(), case.batches(1)[0]
    strategy = ss.baselines.data_parallel(graph, topology)

    def eager() -> None:
        work.model.zero_grad()
        work.compute_loss(*batch).backward()  # type: ignore[no-untyped-call]

    def measure(rank: int, transport: ThreadTransport) -> list[float]:
        parallel = ss.parallelize(case.workload(), graph, topology, strategy, transport=transport)
        return interleaved(lambda: parallel.step(*batch), eager)

    return ss.run_threads(1, measure)[0]


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="The spine, small test models, medians")
    for column in ("model", "capture / torch.export", "tasks", "core ns a task", "Python / core", "step / eager"):
        table.add_column(column, justify="right")
    for name, case in CASES.items():
        capture, export = capture_times(case)
        tasks, (core, plain) = play_times(case)
        step, eager = step_times(case)
        row = (f"{capture / export:.2f}x", str(tasks), f"{core / tasks * 1e9:.0f}", f"{plain / core:.0f}x")
        table.add_row(name, *row, f"{step / eager:.2f}x")
    Console().print(table)


if __name__ == "__main__":
    main()
