"""Ranks that each run a module of the benchmarks: gloo processes, NCCL ranks that share one GPU, or either on nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch

from soapstone.runtime.sharing import cpu_ranks, made_nodes, run_ranks, shared_gpu


def launch(ranks: int, gpu: bool, module: str, *arguments: str) -> list[int]:
    """The exit codes of `python -m MODULE ARGUMENTS` on so many ranks, or torchrun's."""
    command = ["-m", module, *arguments]
    if gpu:
        with shared_gpu(ranks) as environments:
            return run_ranks([sys.executable, *command], environments)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return [subprocess.run([sys.executable, *torchrun, *command], env=environment, check=False).returncode]


def on_nodes(shape: str, gbit: float, module: str, *arguments: str) -> list[int]:
    """Run a module on each rank of several emulated nodes, and return the exit statuses. The ranks share a GPU if there
    is one."""
    num_nodes, per_node = map(int, shape.split("x"))
    shared = torch.cuda.is_available()
    ranks = shared_gpu(per_node, num_nodes) if shared else nullcontext(cpu_ranks(per_node, num_nodes))
    with ranks as environments, made_nodes(num_nodes, gbit) as nodes:
        command = [sys.executable, "-m", module, *arguments]
        return run_ranks(command, environments, enter=lambda rank: nodes.enter(rank // per_node))


def waited(step: Callable[[], object], place: torch.device) -> Callable[[], object]:
    """A step until its device is done."""

    def act() -> None:
        step()
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    return act
