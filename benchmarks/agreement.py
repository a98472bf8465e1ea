"""Delta and resume against full on every task: a million proposals on small models with 2 to 16 devices, and a thousand
for each model at its full size on 64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

import numpy as np
from rich.console import Console
from rich.progress import track

import soapstone as ss
from soapstone.loading import Request, load_graph
from tests.support.chains import SMALL, moves, start

SMALLEST = ("mlp", "cnn", "lstm", "crop")
TOPOLOGIES = ("cpu:1x2", "k80:1x3", "p100:2x2", "h100:1x2+a100:1x3", "cpu:1x7", "k80:2x4", "p100:4x4")
PROPOSALS = 1_000_000
FULL_SIZE = ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt", "gpt2", "vit")


def check(sim: ss.Simulator, walk: Iterator[dict[str, ss.Configuration]], count: int, share: float) -> int:
    """Propose, compare, accept a share; returns how many proposals differed in any task."""
    rng, wrong = random.Random(count), 0
    for changes in islice(walk, count):
        makespan = sim.propose(changes, engine="full")
        tasks = sim.native.timeline()
        sim.reject()
        for engine in ("delta", "resume"):  # the last may be accepted
            same = sim.propose(changes, engine=engine) == makespan
            wrong += not (same and all(np.array_equal(a, b) for a, b in zip(tasks, sim.native.timeline())))
            if engine == "resume" and rng.random() < share:
                sim.accept()
            else:
                sim.reject()
    return wrong


def small(job: tuple[str, str, int, int]) -> int:
    name, text, seed, count = job
    return check(start(name, text, seed), moves(name, text, seed), count, 0.3)


def full_size(name: str) -> int:
    graph, topology = load_graph(Request(name, 64)), ss.Topology.parse("k80:16x4")
    space, rng = ss.Space(graph, topology), random.Random(name)

    def walk() -> Iterator[dict[str, ss.Configuration]]:
        while True:
            op = rng.choice(graph.ops).name
            yield {op: rng.choice(space.configurations(op))}

    sim = ss.Simulator(graph, topology, ss.baselines.data_parallel(graph, topology))
    return check(sim, walk(), 1000, 0.02)


def main() -> None:
    console = Console(width=120, highlight=False)
    names = (*SMALLEST * 6, *SMALL)  # the smallest are the quickest, and tie most
    cases = [(name, text) for name in names for text in TOPOLOGIES]
    jobs = [(name, text, seed, PROPOSALS // len(cases) + 1) for seed, (name, text) in enumerate(cases)]
    with ProcessPoolExecutor() as pool:
        wrong = sum(track(pool.map(small, jobs), "small models", len(jobs), console=console, transient=True))
        console.print(f"{sum(job[3] for job in jobs):,} proposals on 2 to 16 devices: {wrong} differ in any task")
        wrong = sum(
            track(pool.map(full_size, FULL_SIZE), "64 devices", len(FULL_SIZE), console=console, transient=True)
        )
        console.print(f"1,000 proposals for each of {', '.join(FULL_SIZE)} on 64 devices: {wrong} differ in any task")


if __name__ == "__main__":
    main()
