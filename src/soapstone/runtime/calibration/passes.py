"""Numbers that are measured several times, until they repeat themselves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LEAST, MOST = 3, 6  # passes
Found = Mapping[str, float]


@dataclass(frozen=True)
class Measure:
    """Something that gives numbers by name, alike on all ranks. They vary by at most the share `tolerance`, or they are
    unsure; shares, which may be near 0, by so much in all."""

    act: Callable[[], Found]
    tolerance: float = 0.3
    absolute: bool = False


class Numbers:
    """What was found in all passes."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}
        self.unsure: list[str] = []

    def take(self, measure: Measure) -> bool:
        """Measure once more; whether any of its numbers still varies."""
        found = measure.act()
        for name, number in found.items():
            self.samples.setdefault(name, []).append(number)
        varying = [name for name in found if self._varies(name, measure)]
        self.unsure = [name for name in self.unsure if name not in found] + varying
        return bool(varying)

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def _varies(self, name: str, measure: Measure) -> bool:
        """Whether the middle half of the passes lies too far apart."""
        if len(self.samples[name]) < 2:
            return True
        first, _, third = statistics.quantiles(self.samples[name], n=4, method="inclusive")
        return third - first > measure.tolerance * (1.0 if measure.absolute else abs(self[name]))


def measured(measures: Mapping[str, Measure], progress: Callable[[float, str], None]) -> Numbers:
    """Go over all of them in passes, so that what the machine does meanwhile hits each of them once; then again over
    those that vary."""
    numbers, left = Numbers(), list(measures)
    for number in range(MOST):
        varied = []
        for i, name in enumerate(left):
            share = (number + i / len(left)) / LEAST if number < LEAST else 1.0
            progress(min(share, 0.99), name if number < LEAST else f"{name} again, which varied")
            if numbers.take(measures[name]):
                varied.append(name)
        left = list(measures) if number + 1 < LEAST else varied
        if not left:
            break
    return numbers
