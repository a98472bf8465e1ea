"""News of a failure go round, over gloo; a goodbye is no failure."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import soapstone as ss
from soapstone.runtime.transports.signs import shared_signs
from soapstone.runtime.transports.watching import Watch
from tests.support.waiting import HANG

from .launch import run_processes

RANKS = 3


def watching(aborted: threading.Event) -> Watch:
    """A rank whose device has work on its way until it is aborted."""
    return Watch(shared_signs(), aborted.is_set, aborted.set)


def test_every_rank_hears_why_one_failed_and_ends_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.transports.watching.GRACE", 0.2)

    def run(rank: int) -> str:
        aborted = threading.Event()
        watch = watching(aborted)
        dist.barrier()
        if rank == 2:
            watch.announce("rank 2 ran out of memory")
        assert aborted.wait(HANG)
        watch._thread.join(HANG)
        dist.barrier()
        with pytest.raises(ss.SoapstoneError) as caught:
            watch.raise_if_lost()
        return str(caught.value)

    assert run_processes(RANKS, run, tmp_path / "meeting") == ["rank 2 ran out of memory"] * RANKS


def test_a_goodbye_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.transports.watching.GRACE", HANG)  # another rank may be late

    def run(_: int) -> tuple[bool, bool]:
        aborted = threading.Event()
        watch = watching(aborted)
        dist.barrier()
        watch.close()
        watch.raise_if_lost()
        return aborted.is_set(), watch._thread.is_alive()

    assert run_processes(RANKS, run, tmp_path / "meeting") == [(False, False)] * RANKS


def test_a_watch_outlasts_any_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.transports.signs.PATIENCE", 0.2)

    def run(_: int) -> bool:
        shared_signs()
        with pytest.MonkeyPatch.context() as later:  # the ranks have met: that may take any time
            later.setattr("torch.distributed.distributed_c10d.default_pg_timeout", timedelta(seconds=0.5))
            watch = watching(threading.Event())
        watch._thread.join(1)
        watch.raise_if_lost()
        is_alive = watch._thread.is_alive()
        dist.barrier()  # a rank that is done closes its connections
        return is_alive

    assert run_processes(RANKS, run, tmp_path / "meeting") == [True] * RANKS


def test_news_go_on_before_anybody_waits_for_its_own_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.runtime.transports.watching.GRACE", HANG)

    def run(rank: int) -> bool:
        ended, heard = threading.Event(), threading.Event()

        def is_idle() -> bool:
            heard.set()
            return ended.is_set()

        watch = Watch(shared_signs(), is_idle, ended.set)
        dist.barrier()
        if rank == 2:
            watch.announce("rank 2 ran out of memory")
        found = heard.wait(HANG)
        dist.barrier()
        ended.set()
        return found

    assert run_processes(RANKS, run, tmp_path / "meeting") == [True] * RANKS


def test_an_error_that_nobody_caught_is_passed_on(tmp_path: Path) -> None:
    def run(rank: int) -> list[str]:
        told: list[str] = []
        signs = shared_signs()
        signs.doing = "after step 3"
        signs.at_failure(told.append)
        if rank == 1:
            sys.excepthook(ValueError, ValueError("there is no such file"), None)
        dist.barrier()
        return told

    assert run_processes(2, run, tmp_path / "meeting") == [[], ["rank 1 failed after step 3: there is no such file"]]
