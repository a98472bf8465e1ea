"""Ranks that are started together end together, however their launcher ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from soapstone.runtime.sharing import agents, cpu_ranks, made_nodes, run_ranks
from tests.distributed.nodes import needs_nodes

STARTS = """
import sys
from soapstone.runtime.sharing import cpu_ranks, made_nodes, run_ranks
command = ["sh", "-c", "setsid sleep 1000 >/dev/null & echo $$ $!; exec sleep 1000"]
if sys.argv[1] == "ranks":
    run_ranks(command, cpu_ranks(2))
else:
    with made_nodes(2, gbit=1) as nodes:
        run_ranks(command, cpu_ranks(1, 2), enter=nodes.enter)
"""


@contextmanager
def launched(shape: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launcher of two ranks, and the processes that they are and start."""
    with subprocess.Popen([sys.executable, "-c", STARTS, shape], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in launcher.stdout.readline().split()]
        yield launcher, pids
        launcher.kill()


def wait_until_gone(pid: int) -> None:
    """Returns when a process that is not our child has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([pidfd], [], [])
    os.close(pidfd)


@pytest.mark.parametrize(
    ("how", "shape"),
    [
        (signal.SIGKILL, "ranks"),
        pytest.param(signal.SIGINT, "ranks", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, "nodes", marks=needs_nodes),
        pytest.param(signal.SIGTERM, "nodes", marks=[needs_nodes, pytest.mark.long]),
    ],
)
def test_nothing_that_ranks_started_outlives_their_launcher(how: signal.Signals, shape: str) -> None:
    with launched(shape) as (launcher, pids):
        assert len(pids) == 4
        launcher.send_signal(how)
        for pid in pids:
            wait_until_gone(pid)


def test_ranks_get_what_torchrun_would_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    script = f"import os; open(os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in {names}))"
    monkeypatch.chdir(tmp_path)
    assert run_ranks([sys.executable, "-c", script], cpu_ranks(2)) == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0 2 0 2 0 127.0.0.1", "1 2 1 2 0 127.0.0.1"]
    last = cpu_ranks(4, 2)[-1]
    assert [last[name] for name in names] == ["7", "8", "3", "4", "1", "10.77.0.1"]
    assert agents(4, 2)[1]["PET_NODE_RANK"] == "1"


@needs_nodes
def test_a_link_that_is_down_lets_nothing_through() -> None:
    with made_nodes(2) as nodes, ThreadPoolExecutor(1) as there, ThreadPoolExecutor(1) as here:
        here.submit(nodes.enter, 0).result()
        there.submit(nodes.enter, 1).result()
        with here.submit(socket.create_server, ("10.77.0.1", 0)).result() as server:

            def reached(seconds: float) -> bool:
                try:
                    there.submit(socket.create_connection, server.getsockname(), seconds).result().close()
                except OSError:
                    return False
                return True

            assert reached(20)
            nodes.set_link(1, up=False)
            assert not reached(0.2)
            nodes.set_link(1, up=True)
            assert reached(20)
