"""Claim 12: whether a change of one op improves a strategy that the search returns."""

from __future__ import annotations

from ..claim import NOT_RUN, Claim, Ours, table
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting, machine, search

KINDS = {"there": "p100", "today": "h100"}
SECONDS = {2: 15.0, 4: 30.0, 8: 120.0}  # seconds of search by devices


def local_optimum(model: str, machine: str, budget: float) -> Found:
    setting = Setting(model, machine)
    result = search(setting.graph, setting.topology, budget=budget)
    return {
        "locally_optimal": result.locally_optimal,
        "neighbours": result.neighbours,
        "seconds": result.seconds,
        "makespan": result.makespan,
    }


def counts(scale: Scale) -> tuple[int, ...]:
    return (2, 4, 8) if scale.is_whole else (2, 4)


def job(kind: str, model: str, n: int) -> Job:
    return Job(local_optimum, {"model": model, "machine": machine(kind, n), "budget": SECONDS[n]})


def wanted(scale: Scale) -> list[Job]:
    kinds = KINDS.values() if scale.is_whole else ["p100"]
    return [job(kind, model, n) for kind in kinds for model in MODELS for n in counts(scale)]


def described(scale: Scale, results: Results, kind: str) -> str:
    asked = [job(kind, model, n) for model in MODELS for n in counts(scale)]
    rows = [row for one in asked if (row := results.get(one))]
    if not rows:
        return NOT_RUN
    yes = sum(row["locally_optimal"] == "yes" for row in rows)
    return f"{yes} of {len(rows)} on {kind.upper()}: no change of one op improves them"


def ours(scale: Scale, results: Results) -> Ours:
    return Ours(*(described(scale, results, kind) for kind in KINDS.values()))


def more(scale: Scale, results: Results) -> str:
    rows = []
    for model, name in MODELS.items():
        cells = []
        for n in counts(scale):
            row = results.get(job("p100", model, n))
            cells.append(f"{row['locally_optimal']}, {row['neighbours']:,}, {row['seconds']:.0f} s" if row else NOT_RUN)
        rows.append([name, *cells])
    heads = [f"{n} P100, {SECONDS[n]:.0f} s at most" for n in counts(scale)]
    return table(["locally optimal, neighbours tried, seconds", *heads], rows)


CLAIM = Claim(
    12,
    "local_optimum",
    "What the search returns is locally optimal",
    "all strategies for six models on 2, 4 and 8 devices",
    "What is not known to be locally optimal had too little time to look at all neighbours. 8 devices are in "
    "the whole version.",
    wanted,
    ours,
    more=more,
)
