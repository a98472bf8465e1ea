"""What a search tells while it runs, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

from ..strategy import Strategy


@dataclass(frozen=True)
class Progress:
    """How far a search is: the share of its budget that is gone, and the best makespan in seconds, None before there is
    a strategy that fits."""

    phase: str
    share: float
    proposals: int = 0
    seconds: float = 0.0
    makespan: float | None = None


@dataclass(frozen=True)
class Improvement:
    """A new best strategy, after so many proposals and seconds of one chain. Before one fits, the best is what fits
    best, and its makespan may rise."""

    proposals: int
    seconds: float
    makespan: float


@dataclass(frozen=True)
class SearchResult:
    """The best strategy and how it was found. `locally_optimal` is "yes" where no change of one op within the space
    improves it, "no" where one does, and "budget ended" where that was not seen to the end."""

    strategy: Strategy
    makespan: float
    history: tuple[Improvement, ...]  # of the chain that found it
    proposals: int
    seconds: float
    locally_optimal: str
    neighbours: int  # tried without an improvement, one after the other
    interrupted: bool

    def __repr__(self) -> str:
        return f"SearchResult({self.makespan * 1e3:.3f} ms, {self.proposals} proposals, {self.seconds:.1f} s)"
