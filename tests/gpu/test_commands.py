"""The commands as a user starts them, on ranks that share the GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import soapstone as ss
from tests.support.waiting import HANG

from .conftest import python_path

SMALL = ("--batch", "8", "--size", "layers=2", "--size", "width=64", "--size", "heads=4", "--size", "length=64",
         "--size", "vocab=200")  # fmt: skip


def ranks(folder: Path, count: int, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(), "SOAPSTONE_CACHE": str(folder / "cache")}
    launcher = [sys.executable, "-m", "soapstone", "ranks", str(count), "--", sys.executable]
    return subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, timeout=HANG)


def is_daemon(stat: Path) -> bool:
    """Whether a process is one of MPS's, and not just waiting to be cleared away."""
    try:
        name, _, rest = stat.read_text().rpartition(")")
    except OSError:
        return False
    return "nvidia-cuda-mps" in name and rest.split()[0] != "Z"


def test_calibration_measures_links_and_leaves_no_daemon(tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    done = ranks(tmp_path, 2, "-m", "soapstone", "calibrate", "-o", str(here))
    assert done.returncode == 0, done.stderr
    (link,) = ss.Topology.load(here).links
    assert link.bandwidth > 1e7
    assert "Traceback" not in done.stderr
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if is_daemon(path)]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (("gpt2", *SMALL), ("--precision", "autocast", "--compile", "-s", "data")),
        (("gpt2", *SMALL), ("--precision", "bfloat16", "-s", "model", "--cuda-graphs")),
        (("alexnet", "--batch", "16"), ("-s", "expert",)),
        (("resnet-101", "--batch", "16", "--size", "blocks=1,1,1,1"), ("--batch-norm", "local", "-s", "data")),
    ],
)  # fmt: skip
def test_checked_training(model: tuple[str, ...], options: tuple[str, ...], tmp_path: Path) -> None:
    done = ranks(tmp_path, 2, "-m", "soapstone", "train", *model, "-t", "h200:1x2", *options, "--steps", "2", "--check")
    assert done.returncode == 0, done.stderr
    assert "Checked 3 steps against" in done.stderr
    assert re.search(r"ms a step", done.stdout)


FAILING = """
import os, signal, sys
import torch
import soapstone as ss
from soapstone.runtime.transports import joined
from tests.support.models import CASES

kept = []

def take_all_memory():
    torch.cuda.set_per_process_memory_fraction(1e-9)
    for size in (2**20, 2**14, 2**9):  # what the allocator has left of its own
        try:
            while True:
                kept.append(torch.empty(size, dtype=torch.uint8, device=place))
        except torch.OutOfMemoryError:
            pass

FAULTS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "out of memory": take_all_memory,
}
with joined("", timeout=20) as (transport, place):
    case = CASES["lstm"]
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("h200:1x2")
    strategy = ss.baselines.random(graph, topology, seed=1)
    parallel = ss.parallelize(case.workload().on(place), graph, topology, strategy, transport=transport)
    batch = case.batches(1)[0]
    for step in range(10**6):
        if transport.rank == 1 and step == 5:
            torch.cuda.empty_cache()
            FAULTS[sys.argv[1]]()
        try:
            parallel.step(*batch)
            torch.cuda.synchronize()
        except ss.SoapstoneError as error:
            print(f"rank {transport.rank} heard: {error}", flush=True)
            transport.fail(error)
            os._exit(3)
"""


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("killed", r"rank 0 heard: rank 1 was killed, or ended without a word; last seen "),
        ("stopped", r"rank 0 heard: rank 1 was stopped"),
        ("out of memory", r"rank 0 heard: rank 1 failed .* out of memory"),
    ],
)
def test_where_a_rank_fails_the_others_say_which_and_end(fault: str, wanted: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING)
    done = ranks(tmp_path, 2, str(script), fault)
    assert done.returncode == 2
    assert re.search(wanted, done.stdout), done.stdout + done.stderr
    assert "failed" in done.stderr


def test_a_run_outlasts_the_time_that_ranks_wait_for_one_another(tmp_path: Path) -> None:
    model = ("gpt2", *SMALL, "-t", "h200:1x2", "--steps", "2000", "--timeout", "4", "--json")
    done = ranks(tmp_path, 2, "-m", "soapstone", "train", *model)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["losses"]) * found["step"] > 8, "make it longer"


def test_a_checkpoint_goes_on_under_another_strategy_and_more_ranks(tmp_path: Path) -> None:
    def losses(count: int, folder: str, *options: str) -> list[float]:
        model = ("gpt2", *SMALL, "--precision", "float64", "--optimizer", "adamw", "-t", f"h200:1x{count}", "--json")
        done = ranks(tmp_path, count, "-m", "soapstone", "train", *model, "--save", str(tmp_path / folder), *options)
        assert done.returncode == 0, done.stderr
        found: list[float] = json.loads(done.stdout)["losses"]
        return found

    whole = losses(2, "whole", "--steps", "7", "-s", "data")
    first = losses(2, "cut", "--steps", "2", "-s", "fsdp")
    rest = losses(4, "cut", "--steps", "7", "-s", "megatron", "--resume")
    assert first + rest == pytest.approx(whole, rel=1e-9)
