"""Claim 2: after each change the incremental engines give the same timeline as a full simulation."""

from __future__ import annotations

from benchmarks import agreement
from tests.support.chains import SMALL

from ..claim import NOT_RUN, Claim, Ours
from ..jobs import Found, Job, Results
from ..scale import Scale

CASES = [(name, text) for name in (*agreement.SMALLEST, *SMALL) for text in agreement.TOPOLOGIES]


def exactness(model: str, machine: str, proposals: int) -> Found:
    return {"proposals": proposals, "differ": agreement.small((model, machine, 0, proposals))}


def wanted(scale: Scale) -> list[Job]:
    each = scale.checked // len(CASES) + 1
    return [Job(exactness, {"model": name, "machine": text, "proposals": each}) for name, text in CASES]


def ours(scale: Scale, results: Results) -> Ours:
    rows = [row for one in wanted(scale) if (row := results.get(one))]
    if not rows:
        return Ours(NOT_RUN)
    proposals, differ = (sum(row[name] for row in rows) for name in ("proposals", "differ"))
    return Ours(f"{proposals:,} proposals on 2 to 16 devices, each task to the nanosecond: {differ} differ")


CLAIM = Claim(
    2,
    "exactness",
    "Delta simulation always finds the timeline that full simulation finds",
    "always",
    "",
    wanted,
    ours,
)
