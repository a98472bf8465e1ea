"""How a call is timed: what its device takes, and what the thread that launches the work takes.

On a CPU both are one thread, so all of it is the device's. A GPU works on its own while the host launches what comes
next, so the two are told apart: the GPU is kept busy first for as long as the host will need, and then does all that
was launched without ever waiting for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple, Protocol

import torch

_CYCLES_A_NS = 2.0  # of a GPU at its highest clock


class Sample(NamedTuple):
    """Nanoseconds of one call."""

    device: float
    host: float


class Clock(Protocol):
    most_calls: int  # in one sample

    def sample(self, call: Callable[[], object], count: int) -> Sample:
        """What one call takes, over so many in a row."""


class HostClock:
    """For a CPU, which computes what it is told at once."""

    most_calls = 1 << 30

    def sample(self, call: Callable[[], object], count: int) -> Sample:
        begun = perf_counter_ns()
        for _ in range(count):
            call()
        return Sample(max(perf_counter_ns() - begun, 1) / count, 0.0)


class GpuClock:
    """For the current CUDA device."""

    most_calls = 64  # that wait in line: beyond about a thousand kernels the host would have to wait
    patience_ns = 20_000_000  # the longest that the GPU is kept busy

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def sample(self, call: Callable[[], object], count: int) -> Sample:
        host = self._launch(call, count, 0)
        host = self._launch(call, count, min(2 * host, self.patience_ns))
        return Sample(max(self._begin.elapsed_time(self._end) * 1e6, 1) / count, host / count)

    def _launch(self, call: Callable[[], object], count: int, busy_ns: int) -> int:
        """Nanoseconds of the host, while the GPU is kept busy."""
        torch.cuda._sleep(round(busy_ns * _CYCLES_A_NS))  # type: ignore[no-untyped-call]
        begun = perf_counter_ns()
        self._begin.record()
        for _ in range(count):
            call()
        self._end.record()
        spent = perf_counter_ns() - begun
        torch.cuda.synchronize()
        return spent
