"""Time many things side by side.

A machine's speed drifts while one measures. So everything is timed in turn, round after round, a few milliseconds each
time, and the median over the rounds counts: times from one process to the next then differ by some percent, where
timing one thing to its end before the next differs by up to 2.4 times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """So many rounds, of batches this long; what takes very long has fewer rounds, but at least three."""

    rounds: int = 11
    batch_ns: int = 2_000_000
    longest_ns: int = 250_000_000


class Timed:
    """Something to call, and how long it took."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.repeats = call, 1
        self.samples: list[float] = []  # ns of one call
        self.host_shares: list[float] = []  # of that, until the calls returned; the rest is waiting for the device

    @property
    def nanoseconds(self) -> float:
        return median(self.samples)

    @property
    def waits_for_host(self) -> bool:
        """Whether the device is done as soon as the host has launched its work."""
        return median(self.host_shares) > 0.9

    def sample(self, wait: Callable[[], None]) -> None:
        call = self.call
        begun = perf_counter_ns()
        for _ in range(self.repeats):
            call()
        returned = perf_counter_ns()
        wait()
        spent = max(perf_counter_ns() - begun, 1)
        self.samples.append(spent / self.repeats)
        self.host_shares.append((returned - begun) / spent)

    def is_done(self, pace: Pace) -> bool:
        spent = sum(self.samples) * self.repeats
        return len(self.samples) >= min(LEAST_ROUNDS, pace.rounds) and spent > pace.longest_ns

    def begin(self, pace: Pace, wait: Callable[[], None]) -> None:
        """Warm up, and see how many calls make a batch."""
        self.sample(wait)
        while self.samples[-1] * self.repeats < pace.batch_ns / 4:
            self.repeats *= 4
            self.sample(wait)
        self.repeats = max(1, round(pace.batch_ns / self.samples[-1]))
        self.samples, self.host_shares = [], []


def time_all(
    things: Sequence[Timed],
    pace: Pace,
    wait: Callable[[], None],
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Fill the samples of all of them. `progress` hears the share of the rounds that are done."""
    with _undisturbed():
        for timed in things:
            timed.begin(pace, wait)
        for number in range(pace.rounds):
            progress(number / pace.rounds)
            for timed in things:
                if not timed.is_done(pace):
                    timed.sample(wait)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
