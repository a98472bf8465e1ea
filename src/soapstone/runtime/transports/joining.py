"""Join the ranks that torchrun started, for commands that need them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ...errors import LostRankError, RankError
from ...files import shortened, whole_number
from ...parts import keep_freed_memory
from ..sharing.gpu import sleep_while_waiting
from .default import default_transport
from .ending import ends_on_sigterm
from .interfaces import new_store, use_interface
from .meeting import own_store
from .protocol import Transport
from .signs import Signs, share, shared_signs

TIMEOUT = 600.0  # seconds


def _number(name: str, default: int | None) -> int:
    """What torchrun set. Raises RankError where it is missing or no number."""
    text = os.environ.get(name, "" if default is None else str(default))
    if (number := whole_number(text)) is None:
        raise RankError(f"{name} is {shortened(text)} in the environment, not a number; start this with torchrun")
    return number


def _join(backend: str, device: torch.device | None, timeout: timedelta) -> None:
    """Begin torch.distributed's world. Raises LostRankError where a rank does not come."""
    try:
        store, rank, size = new_store(timeout)
        store = own_store(store, rank, size, timeout.total_seconds())
    except LostRankError:
        raise
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise LostRankError(f"rank 0, or what started the ranks, cannot be reached: {said}") from None
    signs = Signs(store, rank, size)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=device, timeout=timeout)
    except RuntimeError:
        raise LostRankError(signs.why(timed_out=True)) from None
    share(signs)


@contextmanager
def joined(
    example: str, timeout: float = TIMEOUT, interface: str | None = None
) -> Iterator[tuple[Transport, torch.device]]:
    """The transport of this rank, and the device that it computes on: a GPU of its own over NCCL, a shared one over
    gloo, else the CPU with one thread. Ranks wait `timeout` seconds for one another. `interface` is passed to
    `use_interface`. Raises RankError if torchrun did not start this process; `example` shows how to start it."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        raise RankError(f"this needs one process for each device; start it with torchrun: {example}")
    local, here = (_number(name, default) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    rank, size, _ = (_number(name, None) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= size:
        raise RankError(f"RANK is {rank}, but WORLD_SIZE is {size}, so nobody would meet it; start this with torchrun")
    use_interface(interface)
    gpus = torch.cuda.device_count()
    place = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
    if gpus:
        sleep_while_waiting(place.index)
        torch.cuda.set_device(place)
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # autograd's thread makes its context then
    else:
        torch.set_num_threads(1)
        keep_freed_memory()  # as measured costs have it
    with_nccl = gpus >= here > 0
    if with_nccl:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # torch would abort; `watching` says a sentence
    _join("nccl" if with_nccl else "gloo", place if with_nccl else None, timedelta(seconds=timeout))
    transport = default_transport(place)
    try:
        with ends_on_sigterm(shared_signs()):
            yield transport, place
    except BaseException as error:
        transport.fail(error)
        if not with_nccl:
            dist.destroy_process_group()
        raise  # the process ends now: to take NCCL down in order could wait for a rank that is gone
    if dist.is_initialized():
        transport.close()
        dist.destroy_process_group()
