"""Run a function or a command on several gloo ranks, each a forked process: torch is there already, which a new process
would take seconds to import."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from soapstone.cli import main
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
    try:
        return pickle.loads(reader.recv_bytes())
    except EOFError as error:  # it was killed
        return error


def _run(rank: int, num_ranks: int, function: Callable[[int], Any], meeting: Path, answer: Connection) -> None:
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks)
        result = function(rank)
        dist.destroy_process_group()
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    answer.send_bytes(pickle.dumps(result))  # plain pickle: torch's own would share memory that dies with this process


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str


@contextmanager
def quick_calibration() -> Iterator[None]:
    """In this process, and in those that are forked from it: each number is measured once, in a few rounds."""
    calibration = "soapstone.runtime.calibration"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{calibration}.meter.rounds_of", lambda size: 3)
        patch.setattr(f"{calibration}.meter.WARM", 1)
        patch.setattr(f"{calibration}.programs.ROUNDS", 4)
        patch.setattr(f"{calibration}.passes.LEAST", 1)
        patch.setattr(f"{calibration}.passes.MOST", 1)
        yield


@contextmanager
def meeting() -> Iterator[dict[str, str]]:
    """Where ranks meet: an address of a port that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that rank 0 may listen there
        held.bind(("127.0.0.1", 0))
        yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}


@contextmanager
def local_ranks(count: int) -> Iterator[list[dict[str, str]]]:
    """The environment of each rank, as torchrun sets it."""
    with meeting() as where:
        shared = where | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        yield [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def run_command(
    folder: Path,
    words: Sequence[str],
    environments: Sequence[Mapping[str, str]] = ({},),
    enter: Callable[[int], None] = lambda number: None,
) -> list[Done]:
    """Run a command of soapstone's, or a script, in a folder, once for each environment. `enter` is called with the
    number of each process in it."""
    context = multiprocessing.get_context("fork")
    logs = [(folder / f"out{number}", folder / f"err{number}") for number in range(len(environments))]
    processes = [
        context.Process(target=_run_command, args=(folder, words, each, *logs[number], enter, number))
        for number, each in enumerate(environments)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG)
        if process.is_alive():
            process.kill()
            process.join()
    return [
        Done(process.exitcode or 0, out.read_text(), err.read_text())
        for process, (out, err) in zip(processes, logs, strict=True)
    ]


def _run_command(
    folder: Path,
    words: Sequence[str],
    environment: Mapping[str, str],
    out: Path,
    err: Path,
    enter: Callable[[int], None],
    number: int,
) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    is_script = words[0].endswith(".py")
    sys.argv = list(words) if is_script else ["soapstone", *words]
    status: object = 1
    try:
        enter(number)
        if is_script:
            runpy.run_path(words[0], run_name="__main__")
        else:
            main()
        status = 0
    except SystemExit as stopped:
        status = stopped.code or 0
    except BaseException:
        traceback.print_exc()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(status if isinstance(status, int) else 1)  # gloo's threads may outlive what they hold
