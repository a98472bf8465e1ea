"""Join the ranks that torchrun started, for commands that need them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...errors import RankError
from ...parts import keep_freed_memory
from .default import default_transport
from .protocol import Transport


def _number(name: str, default: int | None) -> int:
    """What torchrun set. Raises RankError where it is missing or no number."""
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise RankError(f"{name} is {text!r} in the environment, which is no number; start this with torchrun")
    return int(text)


@contextmanager
def joined(example: str) -> Iterator[tuple[Transport, torch.device]]:
    """The transport of this rank, and the device that it computes on: a GPU of its own over NCCL, a shared one over
    gloo, else the CPU with one thread. Raises RankError where torchrun did not start this; `example` shows how."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        raise RankError(f"this needs one process for each device; start it with torchrun: {example}")
    local, here = (_number(name, default) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    _number("WORLD_SIZE", None)
    gpus = torch.cuda.device_count()
    place = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(place)
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # autograd's thread makes its context then
    else:
        torch.set_num_threads(1)
        keep_freed_memory()  # as measured costs have it
    if gpus >= here:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # torch would abort; `watching` says a sentence
        dist.init_process_group("nccl", device_id=place)
    else:
        dist.init_process_group("gloo")
    transport = default_transport(place)
    try:
        yield transport, place
    except BaseException as error:
        transport.fail(str(error) or type(error).__name__)
        if gpus < here:
            dist.destroy_process_group()
        raise  # the process ends now: to take NCCL down in order could wait for a rank that is gone
    if dist.is_initialized():
        transport.close()
        dist.destroy_process_group()
