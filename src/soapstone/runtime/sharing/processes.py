"""Runs a command once for each rank or node, and ends all of them together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from .keeper import MARK, keeper

PATIENCE = 30.0  # seconds for the other ranks to end by themselves, once one has failed
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def run_ranks(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    timeout: float = 1e9,
    enter: Callable[[int], None] = lambda number: None,
    patience: float = PATIENCE,
) -> list[int]:
    """Run a command once for each environment, and return the exit statuses. `enter` is called in each new process with
    its number, before the command.

    Ranks that still run `patience` seconds after another has failed, or after the timeout, are killed, with all that
    they started. Ctrl-C and SIGTERM are passed on to them, and they have some time to save their work. If this process
    is killed, so are they."""
    ranks: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout
    failed = False
    with keeper() as mark:
        try:
            for number, environment in enumerate(environments):
                ranks.append(_start(command, {**environment, MARK: mark}, partial(enter, number)))
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
                if not failed and any(rank.returncode for rank in ranks):
                    failed, deadline = True, min(deadline, time.monotonic() + patience)
                time.sleep(0.05)
        except KeyboardInterrupt:
            _pass_on(signal.SIGINT, ranks)
            raise
        except SystemExit:  # how a command reacts to SIGTERM
            _pass_on(signal.SIGTERM, ranks)
            raise
    return [rank.wait() for rank in ranks]


def _start(
    command: Sequence[str], environment: Mapping[str, str], enter: Callable[[], None]
) -> subprocess.Popen[bytes]:
    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # even if the keeper is killed, too
        enter()

    return subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=prepare)


def _pass_on(number: signal.Signals, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send the ranks a signal, and wait a while for them to end."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, number)
    deadline = time.monotonic() + PATIENCE
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
