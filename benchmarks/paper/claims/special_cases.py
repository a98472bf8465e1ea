"""Claim 1: the space of strategies has data, model and expert-designed parallelism in it, and mixes of splits."""

from __future__ import annotations

import soapstone as ss

from ..claim import NOT_RUN, Claim, Ours
from ..jobs import Found, Job, Results
from ..scale import Scale
from ..settings import MODELS, Setting

MACHINES = ("p100:1x4", "k80:2x4")


def special_cases(model: str, machine: str) -> Found:
    """Ops whose configuration under each baseline is not in the space, and how many of its configurations split an op
    in several dims at once."""
    setting = Setting(model, machine, "whole")  # what may be split does not depend on it
    graph, topology = setting.graph, setting.topology
    listed = ss.Space(graph, topology)
    own = {op.name: set(listed.configurations(op.name)) for op in graph.ops}
    missing = {
        name: sum(strategy[op.name] not in own[op.name] for op in graph.ops)
        for name in ss.baselines.UNSHARDED
        for strategy in [ss.baselines.BASELINES[name](graph, topology)]
    }
    hybrid = sum(sum(n > 1 for n in c.degrees.values()) > 1 for found in own.values() for c in found)
    return {"missing": missing, "configurations": sum(map(len, own.values())), "hybrid": hybrid}


def job(model: str, machine: str) -> Job:
    return Job(special_cases, {"model": model, "machine": machine})


def wanted(_: Scale) -> list[Job]:
    return [job(model, machine) for model in MODELS for machine in MACHINES]


def ours(scale: Scale, results: Results) -> Ours:
    rows = [row for one in wanted(scale) if (row := results.get(one))]
    if not rows:
        return Ours(NOT_RUN)
    missing = sum(sum(row["missing"].values()) for row in rows)
    hybrid = sum(row["hybrid"] for row in rows) / sum(row["configurations"] for row in rows)
    what = "all ops of all baselines are" if not missing else f"{missing} configurations of baselines are not"
    return Ours(f"six models on {' and '.join(MACHINES)}: {what} in the space; {hybrid:.0%} of it splits several dims")


CLAIM = Claim(
    1,
    "special_cases",
    "SOAP has data, model and expert-designed parallelism as special cases, and hybrids of them",
    "all of them",
    "",
    wanted,
    ours,
)
