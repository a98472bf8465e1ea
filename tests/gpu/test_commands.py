"""The commands as a user starts them, on ranks that share the GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import soapstone as ss

from .conftest import python_path

TIMEOUT = 110
SMALL = ("--batch", "8", "--size", "layers=2", "--size", "width=64", "--size", "heads=4", "--size", "length=64",
         "--size", "vocab=200")  # fmt: skip


def ranks(folder: Path, count: int, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(), "SOAPSTONE_CACHE": str(folder / "cache")}
    launcher = [sys.executable, "-m", "soapstone", "ranks", str(count), "--", sys.executable]
    return subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT)


def is_daemon(stat: Path) -> bool:
    """Whether a process is one of MPS's, and not just waiting to be cleared away."""
    try:
        name, _, rest = stat.read_text().rpartition(")")
    except OSError:
        return False
    return "nvidia-cuda-mps" in name and rest.split()[0] != "Z"


@pytest.mark.timeout(TIMEOUT)
def test_calibration_measures_links_and_leaves_no_daemon(tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    done = ranks(tmp_path, 2, "-m", "soapstone", "calibrate", "-o", str(here))
    assert done.returncode == 0, done.stderr
    (link,) = ss.Topology.load(here).links
    assert link.bandwidth > 1e7
    assert "Traceback" not in done.stderr
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if is_daemon(path)]


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (("gpt2", *SMALL), ("--amp", "bfloat16", "--compile", "-s", "data")),
        (("gpt2", *SMALL), ("--dtype", "bfloat16", "-s", "model", "--cuda-graphs")),
        (("alexnet", "--batch", "16"), ("-s", "expert",)),
        (("resnet-101", "--batch", "16", "--size", "blocks=1,1,1,1"), ("--batch-norm", "local", "-s", "data")),
    ],
)  # fmt: skip
def test_checked_training(model: tuple[str, ...], options: tuple[str, ...], tmp_path: Path) -> None:
    done = ranks(tmp_path, 2, "-m", "soapstone", "train", *model, "-t", "h200:1x2", *options, "--steps", "2", "--check")
    assert done.returncode == 0, done.stderr
    assert "Checked 3 steps against" in done.stderr
    assert re.search(r"ms a step", done.stdout)


DYING = """
import os, signal, sys, time
import torch
import soapstone as ss
from soapstone.runtime.transports import joined
from tests.support.models import CASES

with joined("") as (transport, place):
    case = CASES["lstm"]
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("h200:1x2")
    strategy = ss.baselines.random(graph, topology, seed=1)
    parallel = ss.parallelize(case.workload().on(place), graph, topology, strategy, transport=transport)
    batch = case.batches(1)[0]
    for step in range(10**6):
        if transport.rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            parallel.step(*batch)
            torch.cuda.synchronize()
        except ss.SoapstoneError as error:
            print(f"heard: {error}", flush=True)
            os._exit(3)
"""


@pytest.mark.timeout(TIMEOUT)
def test_a_killed_rank_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DYING)
    start = time.monotonic()
    done = ranks(tmp_path, 2, str(script))
    assert done.returncode == 2
    assert re.search(r"heard: rank 0 lost", done.stdout), done.stdout + done.stderr
    assert "ranks 0, 1 failed" in done.stderr
    assert time.monotonic() - start < 60


@pytest.mark.timeout(240)
def test_what_tune_keeps_is_not_slower_than_ddp_by_more_than_is_promised(tmp_path: Path) -> None:
    model = ("resnet-101", "--batch", "32", "--size", "blocks=1,1,1,1")
    path = tmp_path / "s.json"
    options = ("--budget", "5", "--limit", "80", "-o", str(path), "--json")
    environment = {**os.environ, "PYTHONPATH": python_path(), "SOAPSTONE_CACHE": str(tmp_path / "cache")}
    launcher = [sys.executable, "-m", "soapstone", "ranks", "2", "--", sys.executable, "-m", "soapstone", "tune"]
    done = subprocess.run([*launcher, *model, *options], env=environment, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (kept,) = [row for row in found["rows"] if row["name"] == found["chosen"]]
    assert kept["against_ddp"][1] <= 1.03, found["rows"]
    assert json.loads(path.read_text())["measured"]["ranks"] == 2
