"""Run a function on several gloo ranks, each a forked process, with a file in place of a port to meet at."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.support.waiting import HANG


def run_processes(num_ranks: int, function: Callable[[int], Any], meeting: Path, *, timeout: float = HANG) -> list[Any]:
    """Return each rank's result; an exception comes back as a value, with its traceback as a note."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = [
        context.Process(target=_run, args=(rank, num_ranks, function, meeting, pipes[rank][1]), daemon=True)
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    try:
        return [_result(reader, timeout) for reader, _ in pipes]
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def _result(reader: Connection, timeout: float) -> Any:
    if not wait([reader], timeout):
        raise TimeoutError(f"a rank gave no answer for {timeout:g} s")
    return pickle.loads(reader.recv_bytes())


def _run(rank: int, num_ranks: int, function: Callable[[int], Any], meeting: Path, answer: Connection) -> None:
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks)
        result = function(rank)
        dist.destroy_process_group()
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    answer.send_bytes(pickle.dumps(result))  # plain pickle: torch's own would share memory that dies with this process
