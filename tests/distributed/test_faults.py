"""What happens to a run when something happens to one of its ranks."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.soak.run import limit
from benchmarks.soak.training import Training, until
from soapstone.files import HALF
from soapstone.runtime.checkpoints import latest, lease, whole_state
from soapstone.runtime.checkpoints.index import Index
from tests.support.waiting import HANG

from .launch import meeting

MODEL = ("lenet", "--batch", "8", "--precision", "float64", "--optimizer", "adamw", "-t", "cpu:1x2")


def has_saved(folder: Path) -> bool:
    return latest(folder) is not None


def assert_nothing_is_left(training: Training, folder: Path) -> None:
    assert training.processes() == {}
    assert not [path for path in folder.rglob("*") if path.name.startswith(HALF) and path.name != lease.NAME]


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        pytest.param(signal.SIGKILL, "rank 1 was killed, or ended without a word; last seen ", marks=pytest.mark.long),
        pytest.param(signal.SIGSTOP, "rank 1 was stopped ", marks=pytest.mark.long),
        pytest.param(signal.SIGSEGV, "rank 1 was killed, or ended without a word; last seen ", marks=pytest.mark.long),
    ],
)
def test_the_other_rank_says_in_a_sentence_what_became_of_one(
    what: signal.Signals, wanted: str, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    options = ("--steps", "1000000", "--save", str(saved), "--every", "5", "--timeout", "15")
    with Training(*MODEL, *options) as training:
        assert training.until(lambda: has_saved(saved), HANG), training.output
        assert training.send(1, what)
        if what == signal.SIGSTOP:
            assert training.until(lambda: bool(training.sentences), HANG), training.output
            training.send(1, signal.SIGKILL)  # as torchrun does, half a minute later
        assert training.end(HANG) != 0
        assert any(wanted in line for line in training.sentences), training.output
        assert "site-packages/soapstone" not in training.output  # no traceback of ours
        assert training.processes() == {}
    assert whole_state(saved)


@pytest.mark.long  # the test below has a restart, too
def test_torchrun_restarts_from_the_last_checkpoint_by_itself(tmp_path: Path) -> None:
    options = ("--steps", "60", "--every", "5", "--json")
    with Training(*MODEL, *options, "--save", str(tmp_path / "plain")) as plain:
        assert plain.end(HANG) == 0, plain.output
    killed = ("--save", str(tmp_path / "killed"))
    with Training(*MODEL, *options, *killed, restarts=1) as training:
        assert training.until(lambda: has_saved(tmp_path / "killed"), HANG), training.output
        assert training.send(0, signal.SIGKILL)
        assert training.end(HANG) == 0, training.output
        assert "steps, to go on from" in training.output
        assert_nothing_is_left(training, tmp_path / "killed")
    for name, tensor in whole_state(tmp_path / "plain").items():
        torch.testing.assert_close(whole_state(tmp_path / "killed")[name], tensor, rtol=1e-9, atol=1e-12)


def test_a_folder_is_that_of_one_run_whose_ranks_end_with_torchrun(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = ("--save", str(saved), "--every", "5", "--steps", "1000000")

    with Training(*MODEL, *options, restarts=1) as training:
        assert training.until(lambda: has_saved(saved), HANG), training.output
        one = (*MODEL[:-1], "cpu:1x1", *options, "--resume")
        with Training(*one, ranks=1) as other:
            assert other.end(HANG) != 0
            process = f"(process {training.processes()[0]} on {socket.gethostname()}, since 2"
            assert f"{saved} is in use by run " in other.sentences[0]
            assert process in other.sentences[0]
        assert training.send(1, signal.SIGKILL)
        assert training.until(lambda: "steps, to go on from" in training.output, HANG), training.output

        assert training.until(lambda: len(training.processes()) == 2, HANG)
        ranks = training.processes().values()
        shutil.rmtree(saved, ignore_errors=True)  # a checkpoint may be written there meanwhile
        assert training.until(lambda: has_saved(saved), HANG), training.output
        assert f"{saved} was removed, or files in it, while this run uses it" in training.output
        training.process.kill()
        assert until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), HANG)
        assert any("torchrun is gone" in line for line in training.sentences), training.output
    with Training(*MODEL, "--save", str(saved), "--steps", "1", "--resume") as training:
        assert training.end(HANG) == 0, training.output
        assert f"{saved} belonged to run " in training.output
        assert_nothing_is_left(training, saved)


def test_a_run_that_is_told_to_end_saves_a_last_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = ("--save", str(saved), "--steps", "1000000")
    with Training(*MODEL, *options, restarts=1) as training:
        assert training.until(lambda: "step 0: loss" in training.output, HANG), training.output
        assert training.send(1, signal.SIGTERM)
        assert training.until(lambda: "steps, to go on from" in training.output, HANG), training.output
        first = re.search(
            r"Stopped by SIGTERM to rank 1 after (\d+) steps; saved .*; go on with --resume", training.output
        )
        assert first is not None
        assert f"{saved} has {first[1]} steps, to go on from" in training.output
        assert "exitcode  : 143" in training.output or "exitcode: 143" in training.output
        training.process.send_signal(signal.SIGINT)
        assert training.end(HANG) != 0
        second = re.search(r"Stopped by Ctrl-C.* after (\d+) steps; saved (.*); go on with --resume", training.output)
        assert second is not None, training.output
        assert second[2] == str(latest(saved)) == str(saved / f"step-{int(second[1]):09}")
        assert training.sentences == []
        assert training.processes() == {}


@pytest.mark.long
def test_a_full_disk_leaves_the_last_whole_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = ("--steps", "1000000", "--every", "5", "--save", str(saved))
    with Training(*MODEL, *options) as training:
        assert training.until(lambda: has_saved(saved), HANG), training.output
        assert limit(training.processes()[1], resource.RLIMIT_FSIZE)
        assert training.end(HANG) != 0
        assert (
            f"rank 1: cannot write a checkpoint to {saved}: File too large; make room there (step-"
            in training.sentences[0]
        )
        assert_nothing_is_left(training, saved)
    assert whole_state(saved)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "skip"])
def test_a_loss_that_is_not_finite_ends_the_run_or_is_skipped(how: str, tmp_path: Path) -> None:
    options = ("--steps", "5", "--lr", "1e200", "--on-nan", how, "--json")
    with Training(*MODEL, *options) as training:
        assert (training.end(HANG) == 0) == (how == "skip")
        if how == "stop":
            assert "the loss of step" in training.sentences[0]
            assert "is not finite" in training.sentences[0]
        assert training.processes() == {}


def ranks_of(folder: Path) -> int:
    """How many wrote the newest checkpoint."""
    path = latest(folder)
    return Index.read(path).ranks if path is not None else 0


@pytest.mark.long
def test_a_run_goes_on_with_the_nodes_that_are_left(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = ("--steps", "300", "--every", "5", "--save", str(saved), "--elastic", "--timeout", "20", "-s", "data")
    joining = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else torchrun waits in vain for a node that comes later

    def node(is_host: int) -> Training:
        launcher = (
            "--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1",
            "--rdzv-endpoint", f"127.0.0.1:{where['MASTER_PORT']}",
            "--rdzv-conf", f"is_host={is_host},join_timeout=60,last_call_timeout=5",
        )  # fmt: skip
        return Training(*MODEL, *options, restarts=3, launcher=launcher, environment=joining)

    with meeting() as where, node(1) as first:
        with node(0) as second:
            assert first.until(lambda: ranks_of(saved) == 2, HANG), first.output + second.output
        assert first.end(HANG) == 0, first.output  # the second is gone, torchrun and all
        assert "steps, to go on from" in first.output
    assert ranks_of(saved) == 1
    with Training(*MODEL, "--steps", "300", "--save", str(tmp_path / "plain")) as plain:
        assert plain.end(HANG) == 0
    found = whole_state(saved)
    for name, tensor in whole_state(tmp_path / "plain").items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=1e-9)


def test_a_hang_is_a_failure_of_these_tests(tmp_path: Path) -> None:
    with (
        Training(*MODEL, "--steps", "1000000") as training,
        pytest.raises(subprocess.TimeoutExpired),
    ):
        training.end(0.1)
    assert training.processes() == {}
