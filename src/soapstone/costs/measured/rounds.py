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

from .clocks import Clock, Sample

LEAST_ROUNDS = 3
CLOSE = Sample(device=0.04, host=0.25)  # samples that differ by no more than these shares agree


@dataclass(frozen=True, slots=True)
class Pace:
    """So many rounds, of batches this long; what takes very long, or the same every time, has fewer, but at least
    three."""

    rounds: int = 11
    batch_ns: int = 2_000_000
    longest_ns: int = 250_000_000


class Timed:
    """Something to call, and how long it took."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.repeats = call, 1
        self.samples: list[Sample] = []

    @property
    def device(self) -> float:
        """Nanoseconds of one call."""
        return median(sample.device for sample in self.samples)

    @property
    def host(self) -> float:
        """Nanoseconds that another thread takes to launch one."""
        return median(sample.host for sample in self.samples)

    def sample(self, clock: Clock) -> None:
        self.samples.append(clock.sample(self.call, self.repeats))

    def is_done(self, pace: Pace) -> bool:
        if len(self.samples) < min(LEAST_ROUNDS, pace.rounds):
            return False
        spent = sum(map(max, self.samples)) * self.repeats
        agree = (max(times) <= (1 + close) * min(times) for times, close in zip(zip(*self.samples), CLOSE))
        return spent > pace.longest_ns or all(agree)

    def begin(self, pace: Pace, clock: Clock) -> None:
        """Warm up, and see how many calls make a batch."""
        self.sample(clock)
        while max(self.samples[-1]) * self.repeats < pace.batch_ns / 4 and self.repeats < clock.most_calls:
            self.repeats = min(4 * self.repeats, clock.most_calls)
            self.sample(clock)
        self.repeats = max(1, min(round(pace.batch_ns / max(self.samples[-1])), clock.most_calls))
        self.samples = []


def time_all(
    things: Sequence[Timed], pace: Pace, clock: Clock, progress: Callable[[float], None] = lambda _: None
) -> None:
    """Fill the samples of all of them. `progress` hears the share of the rounds that are done."""
    with _undisturbed():
        for timed in things:
            timed.begin(pace, clock)
        for number in range(pace.rounds):
            progress(number / pace.rounds)
            for timed in things:
                if not timed.is_done(pace):
                    timed.sample(clock)


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
