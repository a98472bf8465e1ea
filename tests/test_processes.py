"""Finds the torchrun that started a process, directly, through a shell or from a thread, and whether it still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from soapstone.processes import RUN_ID, Process, machine

PLAIN = {name: value for name, value in os.environ.items() if name != RUN_ID}
RANK = """
import ctypes, os, sys
from soapstone.processes import end_with_torchrun, torchrun
end_with_torchrun()
found, number = torchrun(), ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
print(found.number if found else 0, number.value, flush=True)
sys.stdin.read()
"""
LAUNCHER = """
import os, subprocess, sys, threading

def start():
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "job"}
    rank = subprocess.Popen(sys.argv[2:], env=environment, stdout=subprocess.PIPE, text=True)
    print(rank.stdout.readline(), end="", flush=True)

if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
sys.stdin.read()
"""


def test_a_process_is_known_by_its_start() -> None:
    own = Process.of(os.getpid())
    assert own.has_ended is False
    assert Process(machine(), own.number, "1").has_ended is True
    assert Process("another machine", own.number).has_ended is None
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        gone = Process.of(process.pid)
    assert gone.has_ended is True


@pytest.mark.parametrize(
    ("how", "through", "wanted"),
    [("main", [], signal.SIGTERM), ("main", ["sh", "-c", '"$@"; true', "sh"], 0), ("thread", [], 0)],
)
def test_the_kernel_ends_a_rank_with_torchruns_main_thread_only(how: str, through: list[str], wanted: int) -> None:
    """A thread that starts ranks may end before them, and a shell outlives torchrun."""
    command = [sys.executable, "-c", LAUNCHER, how, *through, sys.executable, "-c", RANK]
    done, inlet = os.pipe()
    with subprocess.Popen(command, stdin=done, stdout=subprocess.PIPE, text=True, env=PLAIN) as launcher:
        os.close(done)
        assert launcher.stdout is not None
        assert launcher.stdout.readline().split() == [str(launcher.pid), str(int(wanted))]
        os.close(inlet)  # which ends all of them


def test_without_torchrun_nobody_is_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RANK], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=PLAIN
    )
    assert done.stdout.split() == ["0", "0"]
