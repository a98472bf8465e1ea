"""Ranks that each run a module of the benchmarks: gloo processes, or NCCL ranks that share one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import torch

from soapstone.runtime.sharing import run_ranks, shared_gpu


def launch(ranks: int, gpu: bool, module: str, *arguments: str) -> list[int]:
    """The exit codes of `python -m MODULE ARGUMENTS` on so many ranks, or torchrun's."""
    command = ["-m", module, *arguments]
    if gpu:
        with shared_gpu(ranks) as environments:
            return run_ranks([sys.executable, *command], environments)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return [subprocess.run([sys.executable, *torchrun, *command], env=environment, check=False).returncode]


def waited(step: Callable[[], object], place: torch.device) -> Callable[[], object]:
    """A step until its device is done."""

    def act() -> None:
        step()
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    return act
