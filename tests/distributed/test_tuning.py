"""Tuning on gloo ranks, beside DistributedDataParallel, as a user starts the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
FAST = ("--costs", "analytic", "-t", "cpu:1x2", "--budget", "1")  # measures nothing but steps


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "soapstone", "tune", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, cwd=folder, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it never said {words!r}:\n{said}")


MODEL = ("lenet", "--batch", "8")


def test_the_command_writes_what_it_measured_and_starts_from_it_again(tmp_path: Path) -> None:
    options = (*MODEL, *FAST, "--limit", "5", "-o", "s.json", "--json")
    for names in ({"data", "DDP"}, {"before", "DDP"}):
        with started(tmp_path, *options) as process:
            out, err = process.communicate(timeout=HANG)
        assert process.returncode == 0, err
        found = json.loads(out)
        assert names <= {row["name"] for row in found["rows"]} | ({"before"} if "races, too" in err else set())
        content = json.loads((tmp_path / "s.json").read_text())
        assert content["measured"] == found["strategy"]["measured"]
        assert content["measured"]["ranks"] == 2
        assert content["measured"]["ddp"] > 0
        assert content["made_for"]["arguments"]["batch_norm"] == "local"


@pytest.mark.long
def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    with started(tmp_path, *MODEL, *FAST, "--limit", "100", "-o", "s.json") as process:
        read_until(process, "Racing")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=HANG)
    assert "is kept" in out
    assert "measured" in json.loads((tmp_path / "s.json").read_text())


def rank_of(parent: int, rank: int) -> int:
    """The process of one of torchrun's ranks."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            own = int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if own and f"RANK={rank}".encode() in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"there is no rank {rank}")


def test_a_killed_rank_leaves_the_best_so_far(tmp_path: Path) -> None:
    with started(tmp_path, *MODEL, *FAST, "--limit", "100", "-o", "s.json") as process:
        read_until(process, "Racing")
        os.kill(rank_of(process.pid, 1), signal.SIGKILL)
        out, err = process.communicate(timeout=HANG)
    assert process.returncode != 0
    assert "is kept" in out, err
    assert "soapstone: rank 1 was killed, or ended without a word; last seen " in err
    assert "measured" in json.loads((tmp_path / "s.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(("lenett", *FAST), "did you mean lenet?", marks=pytest.mark.long),
        pytest.param(("lenet", *FAST, "--optimizer", "lion"), "optimizer 'lion' is not known", marks=pytest.mark.long),
        (("lenet", *FAST, "-o", "other.json"), "other.json is not a strategy file"),
    ],
)
def test_nonsense_ends_in_a_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with started(tmp_path, *arguments) as process:
        _, err = process.communicate(timeout=HANG)
    assert process.returncode != 0
    ours = [line for line in err.splitlines() if line.startswith("soapstone: ")]
    assert sentence in ours[0], err
