"""Ranks that share one GPU and communicate over NCCL.

NCCL refuses two ranks of one host on one GPU, but takes NCCL_HOSTID for the host's name. So each rank is a host of its
own, and they communicate over sockets. If NVIDIA's MPS is installed, the ranks run side by side, each on its part of
the multiprocessors; without it they take turns.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import RankError
from .keeper import MPS_CONTROL, keeper
from .nodes import cpu_ranks

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # set if a process has a part of a GPU
_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC


@contextmanager
def shared_gpu(per_node: int, num_nodes: int = 1) -> Iterator[list[dict[str, str]]]:
    """The environment of each rank, as torchrun would set it. With several nodes, each rank must enter its node of
    `made_nodes`. MPS ends with the context."""
    if per_node < 1 or num_nodes < 1:
        raise RankError(f"there cannot be {num_nodes} nodes of {per_node} ranks; use 1 or more of both")
    with _mps(per_node * num_nodes) as mps:
        yield [
            {
                **environment,
                **mps,
                "LOCAL_RANK": "0",  # to NCCL each rank is a host with one GPU
                "LOCAL_WORLD_SIZE": "1",
                "NCCL_HOSTID": f"soapstone-{environment['MASTER_PORT']}-{environment['RANK']}",
                "NCCL_NET": "Socket",
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
                "NCCL_IB_DISABLE": "1",
            }
            for environment in cpu_ranks(per_node, num_nodes)
        ]


def sleep_while_waiting(device: int) -> None:
    """Let this process sleep while it waits for its GPU, if it shares the GPU. By default it spins, which takes a core
    for each rank from the threads that move the ranks' messages."""
    if SHARE not in os.environ:
        return
    with suppress(OSError):  # without a driver by this name it goes on spinning
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxSetFlags_v2(device, _BLOCKING_SYNC)


@contextmanager
def _mps(num_ranks: int) -> Iterator[dict[str, str]]:
    """An MPS daemon of our own, apart from any other on the machine; yields the variables that ranks need for it."""
    if shutil.which(MPS_CONTROL) is None:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="mps")
    places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    with keeper(folder):
        subprocess.run([MPS_CONTROL, "-d"], env={**os.environ, **places}, check=False, capture_output=True)
        pid_file = Path(folder) / f"{MPS_CONTROL}.pid"
        if not pid_file.exists():
            raise RankError(f"NVIDIA's MPS did not start; {MPS_CONTROL} -d says why")
        yield {**places, SHARE: str(100 / num_ranks)}
