"""Claim 11: the best of all strategies for LeNet and a 2-step RNNLM on 4 devices, and whether the search finds it."""

from __future__ import annotations

import soapstone as ss
from soapstone.loading import Request, load_graph
from soapstone.searching import exhaustive

from ..claim import NOT_RUN, Claim, Ours, table
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import TRAINING

CASES = {"LeNet": ("lenet", {}), "RNNLM of 2 steps": ("rnnlm", {"length": 2})}
MACHINES = ("p100:1x4", "h100:1x4")
SEEDS = 3


def proof(case: str, machine: str, seeds: int) -> Found:
    model, sizes = CASES[case]
    graph, topology = load_graph(Request(model, 64, dict(sizes))), ss.Topology.parse(machine)
    best = exhaustive(graph, topology, training=TRAINING, budget=1800.0, threads=2)
    found = [ss.search(graph, topology, training=TRAINING, budget=10.0, seed=seed) for seed in range(seeds)]
    return {
        "proved": best.proved,
        "makespan": best.makespan,
        "seconds": best.seconds,
        "log10_size": best.log10_size,
        "found": sum(result.makespan == best.makespan for result in found),
    }


def job(case: str, machine: str) -> Job:
    return Job(proof, {"case": case, "machine": machine, "seeds": SEEDS}, alone=True)


def wanted(_: Scale) -> list[Job]:
    return [job(case, machine) for case in CASES for machine in MACHINES]


def told(results: Results, machine: str) -> str:
    lines = []
    for case in CASES:
        row = results.get(job(case, machine))
        lines.append(
            f"{case} {'proved' if row['proved'] else 'not proved'} in {row['seconds']:.0f} s, found by {row['found']} "
            f"of {SEEDS} seeds" if row else NOT_RUN
        )  # fmt: skip
    return f"`{machine}`: " + "; ".join(lines)


def ours(_: Scale, results: Results) -> Ours:
    return Ours(*(told(results, machine) for machine in MACHINES))


def more(_: Scale, results: Results) -> str:
    rows = []
    for case in CASES:
        for machine in MACHINES:
            if row := results.get(job(case, machine)):
                rows.append([case, f"`{machine}`", f"10^{row['log10_size']:.1f}", f"{row['makespan'] * 1e3:.4f} ms",
                             f"{row['seconds']:.1f} s", f"{row['found']} of {SEEDS}"])  # fmt: skip
    return table(["model", "machine", "strategies", "optimum", "proof", "seeds that find it in 10 s"], rows)


CLAIM = Claim(
    11,
    "global_optimum",
    "On small models the search finds the best strategy there is",
    "LeNet and a 2-step RNNLM on 4 devices, about 10^11 strategies, proved in 0.8 and 18 hours",
    "",
    wanted,
    ours,
    more=more,
)
