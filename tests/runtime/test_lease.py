"""The run that a folder of checkpoints belongs to, and for how long."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.files import HALF, encode
from soapstone.processes import Process, machine
from soapstone.runtime import Parallel
from soapstone.runtime.checkpoints import lease, saving, storage, whole_state
from soapstone.runtime.checkpoints.lease import NAME, Owner, hold, owner_of
from tests.runtime.test_checkpoint_files import on_ranks, saved, step
from tests.support.waiting import HANG

ELSEWHERE = Process("another machine", 12)
TORCHRUN = Process(machine(), 1, "1")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for held in list(lease._leases.values()):
        held.release()


@pytest.fixture
def living() -> Iterator[Process]:
    """A process that runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield Process.of(process.pid)
        process.communicate(b"\n")


def left_by(process: Process, folder: Path, launchers: tuple[Process, ...] = (), ended: bool = False) -> Owner:
    """The lease of another run."""
    owner = Owner("1a2b3c4d", "its own", "node7", process, "2026-01-02 03:04:05 UTC", "job 5", launchers, ended)
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_text(json.dumps(encode(owner)))
    return owner


def test_a_folder_in_use_names_the_run_that_has_it(living: Process, tmp_path: Path) -> None:
    left_by(living, tmp_path)
    wanted = (
        rf"is in use by run 1a2b3c4d, torchrun's 'job 5', \(process {living.number} on node7, since "
        r"2026-01-02 03:04:05 UTC\); end that run, or name another folder"
    )
    for look in (hold, owner_of):
        with pytest.raises(ss.SoapstoneError, match=wanted):
            look(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())["run"] == "1a2b3c4d"


def test_a_run_that_is_gone_makes_room_with_a_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        gone = Process.of(process.pid)
    left_by(gone, tmp_path)
    half = tmp_path / f"{HALF}step-000000005-of-a-save-that-was-killed"
    half.mkdir()
    (half / "rank-00000.safetensors").touch()
    assert hold(tmp_path).owner.run != "1a2b3c4d"
    assert "belonged to run 1a2b3c4d" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_number_that_another_process_has_now_is_not_the_run(living: Process, tmp_path: Path) -> None:
    left_by(replace(living, started="1"), tmp_path)
    hold(tmp_path)


def test_one_that_has_ended_in_good_order_is_not_told_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    left_by(ELSEWHERE, tmp_path, ended=True)
    hold(tmp_path)
    assert capfd.readouterr().err == ""


def test_a_restart_of_a_run_has_its_folder_and_its_name(living: Process, tmp_path: Path) -> None:
    left_by(living, tmp_path, (TORCHRUN, ELSEWHERE))  # its machine may be cut off, and go on for a while
    assert hold(tmp_path, [TORCHRUN]).owner.run == "1a2b3c4d"


@pytest.mark.parametrize("beats", [False, True])
def test_a_run_on_another_machine_is_known_by_its_heartbeat(
    beats: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENCE", HANG if beats else 0.2)
    monkeypatch.setattr(lease, "_LOOK", 0.05)
    left_by(ELSEWHERE, tmp_path)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.01):
            os.utime(tmp_path / NAME)

    if not beats:
        hold(tmp_path)
        return
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(ss.SoapstoneError, match="is in use by"):
            hold(tmp_path)
    finally:
        over.set()
        heart.join()


def test_heartbeats_are_compared_with_the_file_servers_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)  # this machine's is wrong
    left_by(ELSEWHERE, tmp_path)
    written = (tmp_path / NAME).stat().st_mtime
    assert 0 <= lease._now(tmp_path) - written < 60
    os.utime(tmp_path / NAME, (written - 100, written - 100))
    hold(tmp_path)  # at once


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"run": 5}'])
def test_a_file_that_cannot_be_read_is_nobodys(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_UNREAD", 0.1)
    (tmp_path / NAME).write_text(content)
    assert owner_of(tmp_path) is None
    hold(tmp_path)


def test_a_folder_that_is_removed_is_made_again_and_told_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    held = hold(folder)
    shutil.rmtree(folder)
    for _ in range(2):
        held.beat()
    assert capfd.readouterr().err.count("was removed, or files in it, while this run uses it") == 1
    assert not folder.exists()
    assert hold(folder) is held
    assert (folder / NAME).exists()
    assert capfd.readouterr().err == ""
    (folder / NAME).unlink()
    held.beat()
    assert (folder / NAME).exists()
    assert "was removed, or files in it" in capfd.readouterr().err


def test_a_run_whose_folder_was_taken_over_hears_of_it(tmp_path: Path) -> None:
    held = hold(tmp_path)
    left_by(ELSEWHERE, tmp_path)
    with pytest.raises(ss.SoapstoneError, match="was taken over by run 1a2b3c4d"):
        held.renew()
    held.release()
    assert json.loads((tmp_path / NAME).read_text())["run"] == "1a2b3c4d"


def test_a_folder_is_left_to_others(tmp_path: Path) -> None:
    hold(tmp_path, [TORCHRUN]).release(restartable=True)
    found = owner_of(tmp_path)
    assert found is not None
    assert found.is_restarted_by([TORCHRUN])
    hold(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_take_a_dead_runs_folder_one_has_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        gone = Process.of(process.pid)
    left_by(gone, tmp_path)
    context = multiprocessing.get_context("fork")
    start, done = context.Barrier(8), context.Barrier(8)
    has_it = context.SimpleQueue()

    def take() -> None:
        start.wait(HANG)
        try:
            has_it.put(hold(tmp_path).owner.own)
        except ss.SoapstoneError:
            has_it.put("")
        done.wait(HANG)  # all are alive until then
        os._exit(0)

    processes = [context.Process(target=take, daemon=True) for _ in range(8)]
    for each in processes:
        each.start()
    found = [has_it.get() for _ in processes]
    for each in processes:
        each.join(HANG)
    assert sum(map(bool, found)) == 1
    assert json.loads((tmp_path / NAME).read_text())["own"] in found


def test_a_save_leaves_the_files_of_another_run_alone(living: Process, tmp_path: Path) -> None:
    left_by(living, tmp_path)
    half = tmp_path / f"{HALF}step-000000001-of-the-other-run"
    half.mkdir()
    with pytest.raises(ss.SoapstoneError, match="is in use by run 1a2b3c4d"):
        saved(tmp_path)
    assert half.exists()


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("what", ["the folder", "a file"])
def test_a_folder_that_is_removed_during_a_save_costs_that_checkpoint(
    what: str, wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = tmp_path / "saved", storage.write_tensors
    removed = threading.Event()

    def removing(half: Path, rank: int, *rest: Any) -> None:
        if rank == 0 and what == "the folder" and not removed.is_set():
            half.parent.rename(tmp_path / "elsewhere")
            removed.set()
        if rank == 1 and what == "a file" and not removed.is_set():
            plain(half, rank, *rest)
            (half / storage.file_of(rank)).unlink()
            removed.set()
        else:
            removed.wait(HANG)
            plain(half, rank, *rest)

    monkeypatch.setattr(saving, "LAST_PATIENCE", 0.0)
    monkeypatch.setattr(saving, "write_tensors", removing)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        step(parallel, optimizer, work)
        if wait:
            with pytest.raises(ss.SoapstoneError, match="was removed while a checkpoint was written there; save anoth"):
                parallel.save(folder, optimizer, step=1)
        else:
            parallel.save(folder, optimizer, step=1, wait=False)
        parallel.save(folder, optimizer, step=2)

    on_ranks(act)
    assert [path.name for path in folder.glob("step-*")] == ["step-000000002"]
    assert whole_state(folder)


def test_a_run_that_lost_its_folder_to_another_writes_nothing_more(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        step(parallel, optimizer, work)
        parallel.save(tmp_path, optimizer, step=1)
        parallel.saved()
        left_by(ELSEWHERE, tmp_path)  # both ranks write the same
        with pytest.raises(ss.SoapstoneError, match=r"rank 0: .* was taken over by run 1a2b3c4d"):
            parallel.save(tmp_path, optimizer, step=2)

    on_ranks(act)
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-000000001"]
