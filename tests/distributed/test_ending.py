"""A rank that gets a signal says why it ends, whatever its main thread is doing."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from soapstone import processes
from soapstone.errors import LostRankError, RankError
from soapstone.runtime.transports import alone, ending
from soapstone.runtime.transports.ending import ends_on_sigterm
from soapstone.runtime.transports.stopping import stoppable
from tests.support.models import CASES
from tests.support.waiting import HANG

from .launch import run_processes


class Signs:
    """The signs of rank 1."""

    rank, doing = 1, "in step 7"

    def __init__(self, news: str = "") -> None:
        self._news = news

    def news(self) -> str:
        return self._news

    def announce(self, error: BaseException) -> str:
        return str(error)


def told(number: int) -> None:
    os.kill(os.getpid(), number)


def hang() -> None:
    """Wait like a rank inside of torch whose message never comes."""
    threading.Thread(target=time.sleep, args=(HANG,)).start()
    while True:
        time.sleep(HANG)


def ended(act: Callable[[], Any], tmp_path: Path) -> tuple[int | None, str]:
    """The exit status of a process that does something, and what it wrote."""
    log = tmp_path / "log"

    def run() -> None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = os.fdopen(2, "w")
        faulthandler.dump_traceback_later(HANG - 2)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ending.GRACE = ending.AGAIN = 0.2
        processes._said.clear()  # errors that other tests of this process have written
        status = act()
        sys.stderr.flush()
        os._exit(int(status or 0))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(HANG)
    process.kill()
    process.join()
    return process.exitcode, log.read_text()


def after(error: Exception, news: str = "") -> Callable[[], None]:
    """A signal comes after the main thread has raised an error, and before it has written it."""

    def act() -> None:
        try:
            with ends_on_sigterm(Signs(news)):  # type: ignore[arg-type]
                raise error
        except RankError:
            told(signal.SIGTERM)
            hang()

    return act


def stuck(*signals: int, news: str = "") -> Callable[[], None]:
    def act() -> None:
        with ends_on_sigterm(Signs(news)):  # type: ignore[arg-type]
            for number in signals:
                told(number)
            hang()

    return act


def stuck_in_a_loop(number: int, grace: float, news: str = "", *, again: bool = False) -> Callable[[], None]:
    """The signal comes once, or several times: a second one that comes too soon after the first is ignored."""

    def act() -> None:
        with ends_on_sigterm(Signs(news)), stoppable(alone(), grace):  # type: ignore[arg-type]
            told(number)
            while again:
                time.sleep(0.05)
                told(number)
            hang()

    return act


def mute() -> None:
    os.close(2)
    stuck(signal.SIGTERM)()


def deaf() -> None:
    signs = Signs()
    signs.news = lambda: str(1 // 0)  # type: ignore[method-assign]
    with ends_on_sigterm(signs):  # type: ignore[arg-type]
        told(signal.SIGTERM)
        hang()


OOM, LOST = "rank 1 ran out of memory", "rank 0 was killed"


@pytest.mark.parametrize(
    ("act", "status", "wanted"),
    [
        (after(LostRankError(LOST), LOST), 2, LOST),
        (after(RankError(OOM), f"rank 1 failed in step 7: {OOM}"), 2, OOM),
        (after(RankError("rank 0: no such device")), 2, ""),
        (after(RankError("the loss is not finite"), "rank 0 failed: the loss is not finite"), 2, ""),
        (stuck(signal.SIGTERM), 143, "rank 1 was told to end: by SIGTERM, and no rank has failed"),
        (stuck(signal.SIGTERM, news=LOST), 1, f"rank 1 was told to end: another rank failed: {LOST}"),
        (
            stuck_in_a_loop(signal.SIGTERM, grace=0.5),
            143,
            "rank 1 was ended by SIGTERM in step 7: a last checkpoint takes longer than 0.5 s",
        ),
        (stuck_in_a_loop(signal.SIGINT, grace=0), 130, "rank 1 was told to end: by Ctrl-C, and no rank has failed"),
        (stuck_in_a_loop(signal.SIGINT, grace=HANG, again=True), 130, "rank 1 ended in step 7: Ctrl-C came a second"),
        (mute, 143, ""),
        (deaf, 143, "rank 1 was told to end in step 7, and failed: integer division or modulo by zero"),
        (stuck_in_a_loop(signal.SIGTERM, grace=HANG, news=LOST), 1, f"another rank failed: {LOST}"),
    ],
)
def test_a_rank_that_is_told_to_end_says_why(act: Callable[[], None], status: int, wanted: str, tmp_path: Path) -> None:
    found, log = ended(act, tmp_path)
    assert wanted in log
    assert log.count("\n") == bool(wanted)
    assert found == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_that_is_told_to_stop_does_so_after_a_step(number: int, tmp_path: Path) -> None:
    def act() -> int:
        with stoppable(alone()) as stop:
            steps = 0
            while not stop():
                steps += 1
                if steps == 3:
                    told(number)
                time.sleep(0.01)
        sys.stderr.write(f"{stop.reason}\n")
        return stop.status

    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    assert ended(act, tmp_path) == (128 + number, f"{name}\n")


def test_a_signal_that_a_loop_did_not_ask_for_is_not_lost(tmp_path: Path) -> None:
    def act() -> None:
        with stoppable(alone()):
            told(signal.SIGTERM)

    assert ended(act, tmp_path) == (-signal.SIGTERM, "")


def test_all_ranks_of_a_loop_stop_after_the_same_step(tmp_path: Path) -> None:
    case = CASES["mlp"]
    work, topology = case.workload(), ss.Topology.parse("cpu:1x2")
    graph = ss.capture(work)
    (batch,) = case.batches(1)

    def run(rank: int) -> tuple[int, int, str]:
        parallel = ss.parallelize(work, graph, topology, ss.baselines.data_parallel(graph, topology))
        steps = 0
        with parallel.stoppable() as stop:
            while not stop() and steps < 10_000:
                parallel.step(*batch)
                steps += 1
                if steps == 3 and rank == 1:
                    told(signal.SIGTERM)
        parallel.save(tmp_path / "saved", step=steps)
        return steps, stop.status, stop.reason

    found = run_processes(2, run, tmp_path / "meeting")
    assert found[0] == found[1]
    assert found[0][1:] == (143, "SIGTERM to rank 1")
    assert 3 <= found[0][0] < 10_000


def test_a_loop_on_a_thread_hears_no_signals() -> None:
    found: list[bool] = []

    def act() -> None:
        with stoppable(alone()) as stop:
            found.append(stop())

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(HANG)
    assert found == [False]
