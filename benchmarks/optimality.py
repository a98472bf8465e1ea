"""The paper's claims 11 and 12: the best strategies that there are, and some that no change of one op improves.

`python -m benchmarks.optimality` proves the first in a minute; `--all` also searches all six models on 2, 4 and 8
devices until no neighbour is better."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss
from soapstone.loading import Request, load_graph
from soapstone.searching import exhaustive

from .optimizers import PAPER_MODELS, case

PROVED = {"LeNet": ("lenet", {}), "RNNLM of 2 steps": ("rnnlm", {"length": 2})}
BUDGETS = {"p100:1x2": 30.0, "p100:1x4": 30.0, "p100:1x8": 120.0}
console = Console(width=150, highlight=False)


def proofs() -> None:
    names = "model", "strategies", "optimum, ms", "proved", "seconds", "nodes", "simulated", "root gap"
    table = Table(*names, "search finds it", "after s", title="the best of the space, p100:1x4, batch 64, two threads")
    topology = ss.Topology.parse("p100:1x4")
    for label, (model, sizes) in PROVED.items():
        graph = load_graph(Request(model, 64, dict(sizes)))
        proof = exhaustive(graph, topology, threads=2)
        found = [ss.search(graph, topology, seed=seed) for seed in range(3)]
        hits = [result for result in found if result.makespan == proof.makespan]
        after = sorted(result.history[-1].seconds for result in hits)
        table.add_row(label, f"10^{proof.log10_size:.1f}", f"{proof.makespan * 1e3:.4f}", str(proof.proved),
                      f"{proof.seconds:.1f}", f"{proof.nodes:,}", f"{proof.simulated:,}", f"{proof.root_gap:.1%}",
                      f"{len(hits)} of {len(found)} seeds", ", ".join(f"{s:.1f}" for s in after))  # fmt: skip
    console.print(table)


def local_optima() -> None:
    table = Table(
        "model", *BUDGETS, title="locally optimal: answer, neighbours, seconds to the end, speed-up over data"
    )
    for model in track(PAPER_MODELS, "local optima", console=Console(stderr=True), transient=True):
        cells = []
        for text, budget in BUDGETS.items():
            graph, topology = case(model, text)
            data = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).makespan
            result = ss.search(graph, topology, budget=budget)
            speed = f"{data / result.makespan:.2f}x"
            cells.append(f"{result.locally_optimal}, {result.neighbours:,}, {result.seconds:.0f} s, {speed}")
        table.add_row(model, *cells)
    console.print(table)


def main(everything: bool = False) -> None:
    proofs()
    if everything:
        local_optima()


if __name__ == "__main__":
    main("--all" in sys.argv)
