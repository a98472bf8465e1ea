"""Claim 3: op times are measured once for each kind and size, in little time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from ..claim import NOT_RUN, Claim, Ours
from ..jobs import Found, Job, Results
from ..scale import Scale


def profiling(model: str, machine: str, batch: int) -> Found:
    """What `soapstone profile` measures, the first time and the second."""
    command = [sys.executable, "-m", "soapstone", "profile", model, "-t", machine, "--batch", str(batch), "--json"]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "SOAPSTONE_CACHE": cache}
        first, second = (
            json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
            for _ in range(2)
        )
    return {"measured": first["measured"], "seconds": first["seconds"], "again": second["measured"]}


JOB = Job(profiling, {"model": "lenet", "machine": "cpu:1x2", "batch": 64}, alone=True)


def ours(_: Scale, results: Results) -> Ours:
    row = results.get(JOB)
    if row is None:
        return Ours(NOT_RUN)
    each = 1e3 * row["seconds"] / row["measured"]
    return Ours(
        f"LeNet on two CPU ranks: {row['measured']} parts, {each:.0f} ms each; the second time {row['again']}",
        "on a GPU, see [predictions](predictions.md)",
    )


CLAIM = Claim(
    3,
    "profiling",
    "Op times are measured once for each kind and size, and kept",
    "tens of ms each",
    "A part is run until its times agree, forward, backward and in whole, on one thread of a CPU: a quarter "
    "of a second. The paper measures kernels on a GPU.",
    lambda _: [JOB],
    ours,
)
