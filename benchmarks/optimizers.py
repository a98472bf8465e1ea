"""How good a strategy a search finds, how soon, and against whom: simulated times with analytic costs, the whole batch
64 (AlexNet 256) unless a table says otherwise.

`python -m benchmarks.optimizers` prints the first three tables in some four minutes, `--all` the others, too."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph
from soapstone.searching import SearchResult, optcnn

PAPER_MODELS = ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt")
BETAS = (5e-3, 5e-4, 5e-5)  # the paper's temperature, as a share of the first strategy's time
SEEDS = range(5)
console = Console(width=150, highlight=False)


def case(model: str, text: str, per_device: int | None = None) -> tuple[OperatorGraph, ss.Topology]:
    topology = ss.Topology.parse(text)
    batch = 256 if model == "alexnet" else 64
    if per_device is not None:
        batch = per_device * topology.num_devices
    return load_graph(Request(model, batch)), topology


def baselines(graph: OperatorGraph, topology: ss.Topology) -> dict[str, ss.Simulation]:
    return {n: ss.simulate(graph, topology, make(graph, topology)) for n, make in ss.baselines.BASELINES.items()}


def columns(title: str, names: Iterable[str]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="left" if name in ("model", "topology") else "right")
    return table


def speed_ups() -> None:
    table = columns(
        "within 3,000 proposals, median of five seeds",
        ("model", "topology", "data, ms", "of it exposed", "best baseline", "optcnn", "speed-up over data",
         "over the best baseline", "seconds"),
    )  # fmt: skip
    for model, text in (("rnnlm", "p100:1x4"), ("nmt", "p100:1x4"), ("nmt", "p100:4x4"), ("alexnet", "p100:4x4"),
                        ("inception-v3", "p100:1x4"), ("resnet-101", "p100:4x4"), ("rnntc", "p100:4x4")):  # fmt: skip
        graph, topology = case(model, text)
        known = baselines(graph, topology)
        data, best = known["data"], min(known, key=lambda name: known[name].makespan)
        additive = ss.simulate(graph, topology, optcnn(graph, topology)).makespan
        found = [ss.search(graph, topology, proposals=3000, budget=None, seed=seed) for seed in SEEDS]
        makespan = statistics.median(result.makespan for result in found)
        table.add_row(
            model, text, f"{data.makespan * 1e3:.2f}", f"{data.exposed_communication / data.makespan:.0%}", best,
            f"{data.makespan / additive:.2f}x", f"{data.makespan / makespan:.2f}x",
            f"{known[best].makespan / makespan:.2f}x", f"{statistics.median(r.seconds for r in found):.1f}",
        )  # fmt: skip
    console.print(table)


def against_the_paper(cases: list[tuple[str, str]], proposals: int = 3000) -> None:
    """Both begin at data parallelism and choose from the same space."""
    table = columns(
        f"against the paper's method, {proposals:,} proposals each, median of five seeds; the best of three betas",
        (
            "model",
            "topology",
            *(f"paper, {beta:.0e}" for beta in BETAS),
            "soapstone",
            "better by",
            "paper, s",
            "ours, s",
        ),
    )
    for model, text in track(cases, "against the paper", console=Console(stderr=True), transient=True):
        graph, topology = case(model, text)
        data = baselines(graph, topology)["data"].makespan

        def runs(method: str, temperature: float | None) -> list[SearchResult]:
            return [
                ss.search(graph, topology, budget=None, proposals=proposals, seed=seed, method=method,  # noqa: B023
                          temperature=temperature, initial=["data"])
                for seed in SEEDS
            ]  # fmt: skip

        paper = [runs("paper", beta) for beta in BETAS]
        ours = runs("soapstone", None)
        spans = [statistics.median(result.makespan for result in found) for found in (*paper, ours)]
        seconds = [statistics.median(result.seconds for result in found) for found in (paper[1], ours)]
        table.add_row(model, text, *(f"{data / span:.3f}x" for span in spans), f"{min(spans[:-1]) / spans[-1]:.2f}x",
                      *(f"{s:.1f}" for s in seconds))  # fmt: skip
    console.print(table)


def a_transformer() -> None:
    graph, topology = case("gpt2", "h200:1x8")
    known = baselines(graph, topology)
    start = time.perf_counter()
    result = ss.search(graph, topology, budget=5.0, chains=2)
    seconds = time.perf_counter() - start
    table = columns("GPT-2 small on h200:1x8, two chains, all of the search on the clock",
                    ("seconds", "proposals", "locally optimal", "ms", *(f"over {name}" for name in known)))  # fmt: skip
    table.add_row(f"{seconds:.1f}", f"{result.proposals:,}", result.locally_optimal, f"{result.makespan * 1e3:.3f}",
                  *(f"{sim.makespan / result.makespan:.4f}x" for sim in known.values()))  # fmt: skip
    console.print(table)
    busy = known["data"].compute_time / known["data"].makespan / topology.num_devices
    console.print(f"Under data parallelism the devices compute {busy:.1%} of the time.")


def never_worse() -> None:
    table = columns("over the best baseline, 1,000 proposals, whole batch 64 and 64 a device, no memory limit",
                    ("model", "topology", "batch", "best baseline", "speed-up over it"))  # fmt: skip
    texts = ("p100:1x4", "p100:4x4", "k80:2x4", "h200:1x8")
    cases = [(m, t, p) for m in ss.zoo.names() for t in texts for p in (None, 64)]
    worst = 1e9
    for model, text, per_device in track(cases, "never worse", console=Console(stderr=True), transient=True):
        graph, topology = case(model, text, per_device)
        known = baselines(graph, topology)
        best = min(known, key=lambda name: known[name].makespan)
        result = ss.search(graph, topology, budget=60.0, proposals=1000, memory_limit=False)
        speed = known[best].makespan / result.makespan
        worst = min(worst, speed)
        table.add_row(model, text, "whole" if per_device is None else "64 a device", best, f"{speed:.3f}x")
    console.print(table, f"worst: {worst:.4f}x")


def how_soon(text: str, budget: float, seeds: int = 10) -> None:
    """Two chains on two cores."""
    graph, topology = case("nmt", text)
    data = baselines(graph, topology)["data"].makespan
    numbers = track(range(seeds), f"how soon, {text}", console=Console(stderr=True), transient=True)
    seen = [ss.search(graph, topology, budget=budget, seed=seed, chains=2) for seed in numbers]
    best = min(result.makespan for result in seen)
    times = [
        next((step.seconds for step in result.history if step.makespan <= 1.01 * best), float("inf")) for result in seen
    ]
    times.sort()
    console.print(
        f"NMT on {text}: the best of {seeds} seeds is {data / best:.2f}x data parallelism; within 1% of it after "
        f"{statistics.median(times):.1f} s (median), after " + ", ".join(f"{t:.1f}" for t in times) + " s"
    )


def main(everything: bool = False) -> None:
    speed_ups()
    against_the_paper(
        [("nmt", "p100:1x4"), ("rnnlm", "p100:1x4"), ("alexnet", "p100:4x4"), ("inception-v3", "p100:1x4")]
    )
    a_transformer()
    if everything:
        against_the_paper([(m, t) for t in ("p100:1x4", "p100:4x4") for m in PAPER_MODELS])
        how_soon("p100:4x4", 20.0)
        how_soon("p100:16x4", 90.0)
        never_worse()


if __name__ == "__main__":
    main("--all" in sys.argv)
