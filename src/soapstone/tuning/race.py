"""Who is faster, from rounds in which everyone has a turn.

A busy moment of the machine slows all turns of a round, so contestants are compared round by round: the ratio of two is
the median of their rounds' ratios. Its interval are order statistics, the k-th smallest and largest ratio with k from
the binomial distribution (95%, less below 6 rounds), which asks nothing of how times are spread. Whoever is slower than
the leader by that waits, so that the time goes to those who may still win; where the leader turns out to be slower, it
comes back.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, inf

FIRST_LOOK, FAR_BEHIND = 4, 1.1  # rounds after which one waits that was never closer to the leader
SECOND_LOOK, BEHIND = 8, 1.005
ENOUGH, TIE, TIE_ROUNDS = 15, 1.02, 30  # rounds of the winner; where all are so close after so many, it is a tie
MOST_ROUNDS = 80
DOUBT = 0.025  # on each side of an interval


@dataclass(frozen=True)
class Ratio:
    """How many times as long one takes as another, and where that is likely to lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median of the ratios of the same rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    if not ratios:
        return Ratio(inf, 0.0, inf)
    ratios.sort()
    outside = _outside(len(ratios))
    return Ratio(statistics.median(ratios), ratios[outside], ratios[-1 - outside])


@cache
def _outside(count: int) -> int:
    """How many of so many values may be left out on each side, so that the median of all there could ever be lies among
    the others for sure enough."""
    total, left = 0.0, 0
    for number in range(count // 2):
        total += comb(count, number) / 2**count
        if total > DOUBT:
            break
        left = number + 1
    return max(left - 1, 0)


class Race:
    """The rounds so far. `reference` has a turn in each; it may win only where it is one of `ours`."""

    def __init__(self, ours: Sequence[str], reference: str, goal: float = inf) -> None:
        self.ours, self.reference, self.goal = list(ours), reference, goal
        self.alive = [*ours] if reference in ours else [*ours, reference]
        self.num_rounds = 0
        self._turns: dict[str, dict[int, float]] = {name: {} for name in self.alive}

    def add(self, seconds: Mapping[str, float]) -> None:
        """One round; then it is settled who has a turn in the next."""
        for name, found in seconds.items():
            self._turns[name][self.num_rounds] = found
        self.num_rounds += 1
        leader = self.leader
        self.alive = [n for n in self._turns if n in (leader, self.reference) or not self._is_behind(n, leader)]

    def against(self, name: str, other: str) -> Ratio:
        """Over the rounds in which both had a turn."""
        one, two = self._turns[name], self._turns[other]
        both = [number for number in one if number in two]
        return ratio_of([one[number] for number in both], [two[number] for number in both])

    def rounds(self, name: str) -> int:
        return len(self._turns[name])

    def median(self, name: str, beside: str = "") -> float | None:
        """Seconds of a turn, in all of its rounds or only in those of another one."""
        rounds = self._turns[beside or name]
        found = [seconds for number, seconds in self._turns[name].items() if number in rounds]
        return statistics.median(found) if found else None

    @property
    def leader(self) -> str:
        """The one of ours that is the fastest so far."""
        return min(self.ours, key=lambda name: self.against(name, self.reference).value)

    @property
    def is_clear(self) -> bool:
        """Whether more rounds would change nothing: nobody else may win, or it is a tie, and it is known whether the
        winner keeps within the goal."""
        if self.num_rounds >= MOST_ROUNDS:
            return True
        leader = self.leader
        goal = self.against(leader, self.reference)
        doubtful = goal.low <= self.goal < goal.high and self.num_rounds < TIE_ROUNDS
        if self.rounds(leader) < ENOUGH or doubtful:
            return False
        others = [name for name in self.ours if name != leader and not self._is_behind(name, leader)]
        if not others:
            return True
        return self.num_rounds >= TIE_ROUNDS and all(self.against(name, leader).high <= TIE for name in others)

    def _is_behind(self, name: str, leader: str) -> bool:
        low, rounds = self.against(name, leader).low, self.rounds(name)
        return (rounds >= FIRST_LOOK and low > FAR_BEHIND) or (rounds >= SECOND_LOOK and low > BEHIND)
