"""Kills the processes that a launcher has left behind, even if the launcher was killed.

Run as a script (`keeper.py PIPE MARK [MPS_FOLDER]`), it waits until the launcher's end of the pipe is closed; the
kernel closes it however the launcher ends. Then it kills every process that carries the launcher's mark in its
environment, and ends the MPS daemon of that folder. It imports only the standard library, so it starts in
milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

MARK = "SOAPSTONE_LAUNCHED_BY"  # an environment variable that every descendant inherits
MPS_CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 30.0  # seconds for processes, and for a daemon, to end


@contextmanager
def keeper(mps_folder: str = "") -> Iterator[str]:
    """A mark to put under `MARK` in the environment of the processes to start. These processes, and the daemon, have
    ended when the context has."""
    mark = uuid4().hex
    here, ours = os.pipe()
    command = [sys.executable, "-I", "-S", __file__, str(here), mark, mps_folder]
    process = subprocess.Popen(command, pass_fds=(here,), start_new_session=True, stdin=subprocess.DEVNULL)
    os.close(here)
    try:
        yield mark
    finally:
        os.close(ours)
        process.wait()


def end_all(mark: str, mps_folder: str) -> None:
    """Kill the marked processes and all that they start meanwhile, then end the daemon and remove its folder."""
    deadline = time.monotonic() + PATIENCE
    while (marked := list(_marked(mark))) and time.monotonic() < deadline:
        for pid in marked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    if mps_folder:
        _end_daemon(Path(mps_folder))
        shutil.rmtree(mps_folder, ignore_errors=True)


def _marked(mark: str) -> Iterator[int]:
    """The running processes with this mark. Zombies have an empty environment."""
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _end_daemon(folder: Path) -> None:
    """Ask the daemon to end, and wait for it a while."""
    pid_file = folder / f"{MPS_CONTROL}.pid"
    pid = pid_file.read_text().strip() if pid_file.exists() else ""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    subprocess.run([MPS_CONTROL], env=environment, input=b"quit\n", check=False, capture_output=True)
    deadline = time.monotonic() + PATIENCE
    while pid and _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(pipe: str, mark: str, mps_folder: str) -> None:
    os.read(int(pipe), 1)  # nothing is ever written: this returns when the other end is closed
    end_all(mark, mps_folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
