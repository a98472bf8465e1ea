"""One chain of the core with its budget."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from .. import _core
from ..errors import SoapstoneError
from ..files import shortened
from ..strategy import Native
from .options import Move, Options
from .tying import Groups

NEVER = 2**62


def check_budget(seconds: float | None) -> None:
    """Raise SoapstoneError unless it is a time, or None for no limit."""
    if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < inf):
        raise SoapstoneError(f"budget={shortened(seconds)} is not a number of seconds above 0; None means no limit")


@dataclass(frozen=True)
class Budget:
    """What one chain, or all, may spend, from when it was made."""

    seconds: float = inf
    proposals: int = NEVER

    @property
    def is_timed(self) -> bool:
        """Whether seconds alone limit it."""
        return self.proposals == NEVER

    def part(self, share: float) -> Budget:
        """A proposal at least."""
        return Budget(self.seconds * share, self._proposals(max(int(self.proposals * share), 1)))

    def among(self, count: int) -> list[Budget]:
        """One for each of so many chains that has anything to spend; they have the same time."""
        each, more = divmod(self.proposals, count)
        counts = (self._proposals(each + (number < more)) for number in range(min(count, self.proposals)))
        return [Budget(self.seconds, proposals) for proposals in counts]

    def _proposals(self, some: int) -> int:
        return NEVER if self.is_timed else some


class Chain:
    """Walks and descents until the budget is spent."""

    def __init__(self, native: _core.Chain, options: Options, budget: Budget, *, seed: str, place: int) -> None:
        self.native, self.options, self.budget, self.place = native, options, budget, place
        self.random = random.Random(seed)
        self.polished: tuple[tuple[int, int], str, int] | None = None  # a cost, what was seen of it, neighbours tried

    @property
    def cost(self) -> tuple[int, int]:
        """Of the best strategy: how far it is from fitting, then the makespan."""
        return self.native.best_overflow, self.native.best_makespan

    @property
    def share(self) -> float:
        """How much of the budget is gone."""
        gone = max(self.native.num_proposals / self.budget.proposals, self.native.seconds / self.budget.seconds)
        return min(1.0, gone)

    @property
    def locally_optimal(self) -> tuple[str, int]:
        """Whether the best strategy is: "yes", "no" or "budget ended", and how many neighbours were tried."""
        if self.polished is None or self.polished[0] != self.cost:
            return "budget ended", 0
        return self.polished[1:]

    def spent(self) -> bool:
        return self.native.is_stopped or self.share >= 1

    def suffices_for(self, proposals: int) -> bool:
        """Whether the rest of the budget does for so many proposals. Where only time limits them, the rate so far
        tells."""
        made, most = self.native.num_proposals, self.budget.proposals
        if most == NEVER:
            most = int(made * min(self.budget.seconds / self.native.seconds, 1e9))
        return made + proposals <= most

    def stalls(self) -> bool:
        """Whether half of the budget brought no improvement."""
        proposals, seconds, _ = self.native.history[-1]
        idle = (self.native.num_proposals - proposals) / self.budget.proposals
        return max(idle, (self.native.seconds - seconds) / self.budget.seconds) >= 0.5

    def go(self, strategy: Sequence[Native]) -> None:
        self.native.go(list(strategy))

    def at_random(self, groups: Groups) -> list[Native]:
        """A strategy that configures each group at random."""
        strategy: list[Native] = [([], [], 0, False, 0)] * sum(map(len, groups))
        for group in groups:
            configuration = self.random.choice(self.options.table(group[0]))
            for op in group:
                strategy[op] = configuration
        return strategy

    def walk(
        self,
        moves: list[Move],
        temperatures: tuple[float, float],
        *,
        scale: int = 0,
        proposals: int = NEVER,
        share: float = 1.0,
        patience: float = inf,
    ) -> None:
        """Metropolis from one temperature to another, shares of the cost, or of `scale` where that is given. It ends
        after so many proposals, where so much of the budget is gone, or where the share `patience` of the budget brings
        nothing better than the best of all."""
        first, last = (temperature * (scale or 1) for temperature in temperatures)
        most = min(max(self.budget.proposals * patience, 1), NEVER)
        ends = (*self._ends(proposals, share), int(most), self.budget.seconds * patience)
        self.native.walk(moves, first, last, not scale, ends)

    def descend(self, moves: list[Move], *, share: float = 1.0) -> bool:
        """Take improvements until this share of all neighbours, one after the other, was none. Whether it came to that
        before the budget was spent."""
        return self.native.descend(moves, (*self._ends(NEVER, 1.0), NEVER, inf), share)

    def polish(self, ops: Groups) -> None:
        """Descend from the best strategy over the whole space."""
        self.go(self.native.best)
        found = "yes" if self.descend(self.options.moves(ops)) else "budget ended"
        self.polished = self.cost, found, self.native.num_neighbours

    def judge(self, ops: Groups) -> None:
        """See whether any neighbour of the best strategy is better, and leave it as it is."""
        self.go(self.native.best)
        seen = self.native.look(self.options.moves(ops), (*self._ends(NEVER, 1.0), NEVER, inf))
        found = "budget ended" if seen is None else "yes" if seen else "no"
        self.polished = self.cost, found, self.native.num_neighbours

    def _ends(self, proposals: int, share: float) -> tuple[int, float]:
        left = int(self.budget.proposals * share) - self.native.num_proposals
        return max(0, min(proposals, left)), self.budget.seconds * share
