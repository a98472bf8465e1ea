"""Claim 10: how the best strategy for NMT on 16 P100 comes down over the time of a search."""

from __future__ import annotations

from pathlib import Path

import soapstone as ss

from ..claim import NOT_RUN, Claim, Ours
from ..figures import COLOURS, figure, plain
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import Setting, search

MACHINE, TODAY = "p100:4x4", "h100:2x8"
WAYS = {"the paper's, full": ("paper", "full"), "the paper's, delta": ("paper", "delta"),
        "the paper's, our engine": ("paper", "resume"), "Soapstone": ("soapstone", "resume")}  # fmt: skip


def convergence(machine: str, method: str, engine: str, budget: float) -> Found:
    """The best so far, as (seconds, makespan), and data parallelism."""
    setting = Setting("nmt", machine)
    data = setting.simulated(ss.baselines.data_parallel(setting.graph, setting.topology)).makespan
    result = search(
        setting.graph, setting.topology, budget=budget, method=method, engine=engine
    )  # fmt: skip
    history = [(step.seconds, step.makespan) for step in result.history]
    return {"data": data, "history": [*history, (result.seconds, result.makespan)], "proposals": result.proposals}


def job(machine: str, way: str, scale: Scale) -> Job:
    method, engine = WAYS[way]
    arguments = {"machine": machine, "method": method, "engine": engine, "budget": 4 * scale.budget}
    return Job(convergence, arguments, alone=True)


def wanted(scale: Scale) -> list[Job]:
    return [*(job(MACHINE, way, scale) for way in WAYS), job(TODAY, "Soapstone", scale)]


def arrival(found: Found | None) -> str:
    """How good it is in the end."""
    return f"{found['data'] / found['history'][-1][1]:.2f}x" if found else NOT_RUN


def ours(scale: Scale, results: Results) -> Ours:
    there = [f"{way}: {arrival(results.get(job(MACHINE, way, scale)))}" for way in WAYS]
    today = arrival(results.get(job(TODAY, "Soapstone", scale)))
    return Ours(f"over data parallelism after {4 * scale.budget:.0f} s: " + "; ".join(there), f"`{TODAY}`: {today}")


def draw(scale: Scale, results: Results, path: Path) -> None:
    with figure(path, (8, 4)) as drawn:
        axes = plain(drawn.subplots(), "NMT on 16 P100, 64 samples a device", "seconds of search", "best iteration, ms")
        for way, colour in zip(WAYS, COLOURS):
            if row := results.get(job(MACHINE, way, scale)):
                seconds, makespans = zip(*row["history"])
                axes.step(seconds, [1e3 * m for m in makespans], where="post", color=colour, label=way)
        axes.set_xscale("log")
        axes.legend(frameon=False)


CLAIM = Claim(
    10,
    "convergence",
    "The search converges in minutes, sooner with delta simulation",
    "NMT on 16 P100: 6 minutes with delta, 16 with full",
    "Not tried for 16 minutes. In these seconds the paper's method finds little with any engine: any device "
    "for any part makes a large space.",
    wanted,
    ours,
    draw,
)
