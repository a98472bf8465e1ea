"""The device that is measured: what it is called, and when it is done."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ...errors import SoapstoneError
from ...parts import freed_memory_kept
from ...topology.detection import is_kind, kind_of
from .clocks import Clock, GpuClock, HostClock

FORMAT = 3  # raise it where the same question gets another answer


@dataclass(frozen=True, slots=True)
class Machine:
    """`type` is cpu or cuda; a CPU's device is one process with so many threads, and so many others beside it."""

    type: str
    name: str
    threads: int
    beside: int = 0

    @property
    def key(self) -> str:
        """Whose times these are: other hardware, threads or torch have others."""
        beside = f", {self.beside} processes beside it" if self.beside else ""
        return f"{FORMAT} {self.type} {self.name}, {self.threads} threads{beside}, torch {torch.__version__}"

    def clock(self) -> Clock:
        """What times the device."""
        return GpuClock() if self.type == "cuda" else HostClock()

    def check_kind(self, kind: str) -> None:
        """Raise SoapstoneError unless a topology's devices of that kind are this one."""
        own = kind_of(self.name) if self.type == "cuda" else "cpu"
        if is_kind(own, kind):
            return
        raise SoapstoneError(
            f"times are measured on {self.type} ({self.name}), but the topology has {kind} devices; use a topology of "
            f"{own} devices, or analytic costs"
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """New tensors are made on the device, torch uses its threads and keeps its random state, and freed memory is
        used again."""
        before = torch.get_num_threads()
        if self.type == "cpu" and before != self.threads:
            torch.set_num_threads(self.threads)
        try:
            with torch.device(self.type), torch.random.fork_rng(), freed_memory_kept():
                yield
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)


def this_machine(device: str, threads: int, beside: int = 0) -> Machine:
    """Raises SoapstoneError for a device that torch does not have here."""
    if device not in ("cpu", "cuda"):
        raise SoapstoneError(f"device={device!r} cannot be measured; use 'cpu' or 'cuda'")
    if type(threads) is not int or not 0 < threads <= 1024:
        raise SoapstoneError(f"threads={threads!r} is not a whole number from 1 to 1024")
    if type(beside) is not int or not 0 <= beside <= 1024:
        raise SoapstoneError(f"beside={beside!r} is not a whole number from 0 to 1024")
    if device == "cpu":
        return Machine("cpu", _cpu_name(), threads, beside)
    if not torch.cuda.is_available():
        raise SoapstoneError("torch finds no CUDA device here; measure on 'cpu', or use analytic costs")
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    units = f"{found.multi_processor_count} multiprocessors"  # MPS lends some of them
    return Machine("cuda", f"{found.name} with {units}{_precision()}", 1)


def _precision() -> str:
    """What differs from how PyTorch computes in float32 by default."""
    products = ", products in TF32" if torch.backends.cuda.matmul.allow_tf32 else ""
    convolutions = "" if torch.backends.cudnn.allow_tf32 else ", convolutions without TF32"
    return products + convolutions


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
