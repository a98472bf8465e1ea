"""One GPU as several: ranks with a share of it each, that talk over NCCL. For trying and testing.

NCCL refuses two ranks of one host on one GPU, but takes NCCL_HOSTID for the host's name: so each rank is a host of its
own, and they talk over loopback sockets. NVIDIA's MPS, where it is installed, lets the ranks run side by side, each on
its share of the multiprocessors; without it they take turns.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import RankError

PATIENCE = 30.0  # seconds for the other ranks to end by themselves, once one has failed
_CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def shared_gpu(num_ranks: int) -> Iterator[list[dict[str, str]]]:
    """The environment of each rank, as torchrun would set it. MPS ends with the context."""
    if num_ranks < 1:
        raise RankError(f"there cannot be {num_ranks} ranks; use 1 or more")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
    }
    with _mps(num_ranks) as mps:
        ranks = [{"RANK": str(rank), "NCCL_HOSTID": f"soapstone-{port}-{rank}"} for rank in range(num_ranks)]
        yield [{**os.environ, **common, **mps, **own} for own in ranks]


@contextmanager
def _mps(num_ranks: int) -> Iterator[dict[str, str]]:
    """An MPS daemon of our own, whatever else runs on the machine."""
    if shutil.which(_CONTROL) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **places}
        subprocess.run([_CONTROL, "-d"], env=environment, check=False, capture_output=True)
        try:
            yield {**places, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // num_ranks)}
        finally:
            _end_daemon(Path(folder) / f"{_CONTROL}.pid", environment)


def _end_daemon(pid_file: Path, environment: Mapping[str, str]) -> None:
    """Ask the daemon to end, and wait for it a while."""
    pid = pid_file.read_text().strip() if pid_file.exists() else ""
    subprocess.run([_CONTROL], env=environment, input=b"quit\n", check=False, capture_output=True)
    deadline = time.monotonic() + PATIENCE
    while pid and _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run_ranks(command: Sequence[str], environments: Sequence[Mapping[str, str]], timeout: float = 1e9) -> list[int]:
    """Run a command once for each environment; the exit statuses. Ranks that are still there some time after another
    has failed, or after the timeout, are killed, with all that they started. Ctrl-C is passed on to them, and they have
    some time to put away what they found."""
    ranks: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout
    failed = False
    try:
        for environment in environments:
            ranks.append(subprocess.Popen(command, env=environment, start_new_session=True))
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            if not failed and any(rank.returncode for rank in ranks):
                failed, deadline = True, min(deadline, time.monotonic() + PATIENCE)
            time.sleep(0.05)
    except KeyboardInterrupt:
        _interrupt(ranks)
        raise
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):  # nobody of it is left
                os.killpg(rank.pid, signal.SIGKILL)
    return [rank.wait() for rank in ranks]


def _interrupt(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Pass Ctrl-C on, and wait a while for what it ends."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
