"""One search after the other, each with a number of microbatches of its own. Where there are several, they share the
first half of the budget, and the best one goes on with the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic

from ..errors import SoapstoneError
from ..graph import scaled
from ..simulator import translated_errors, workspace_of
from ..strategy import Strategy
from .chain import NEVER, Budget, Chain
from .cuts import WORTH
from .interrupts import Interrupt
from .methods import METHODS
from .outcome import Improvement, Progress, SearchResult
from .problem import Problem
from .starts import TICK, StartDeadline, starts_of
from .tying import Groups, apart, levels


@dataclass(frozen=True)
class Round:
    """A problem, or what makes it, what to begin with, and what the best of that takes, where it is known."""

    made: Problem | Callable[[], Problem]
    initial: Sequence[str | Strategy]
    start_ns: int = 0

    @property
    def problem(self) -> Problem:
        return self.made if isinstance(self.made, Problem) else self.made()


@dataclass
class Rounds:
    """The chains of all rounds, and what they have in common."""

    method: str
    temperature: float
    engine: str
    seed: int
    num_chains: int
    report: Callable[[Progress], None]
    interrupt: Interrupt = field(default_factory=lambda: Interrupt(None))
    done: list[tuple[Problem, list[Chain]]] = field(default_factory=list)
    offsets: list[tuple[int, float]] = field(default_factory=list)  # proposals and seconds before each round
    part: tuple[float, float] = (0.0, 1.0)  # of the whole budget: what is gone before the round, and what it may spend
    begun: float = field(default_factory=monotonic)

    def stop(self) -> None:
        for _, chains in self.done:
            for chain in chains:
                chain.native.stop()

    def tell(self, phase: str, share: float) -> None:
        """Of what comes before a round. After Ctrl-C nothing more is told, and KeyboardInterrupt is raised where there
        is something to give back already."""
        if not self.interrupt.happened:
            self._report(phase, share)
        elif self.done:
            raise KeyboardInterrupt

    def _report(self, phase: str, share: float) -> None:
        gone, own = self.part
        seconds = monotonic() - self.begun
        self.report(Progress(phase, gone + share * own, self.num_proposals, seconds, self._best_seconds))

    def run_all(self, rounds: list[Round], budget: Budget) -> None:
        """Ctrl-C ends it."""
        self.begun = monotonic()
        if len(rounds) == 1 or budget.proposals < 2 * len(rounds):
            return self.run(rounds[0].problem, rounds[0].initial, budget)
        try:
            for number, each in enumerate(rounds):
                if self.done and (self.interrupt.happened or each.start_ns > WORTH * self._best_ns):
                    continue
                self.part = (number / len(rounds) / 2, 1 / len(rounds) / 2)
                self.run(each.problem, each.initial, self._left(budget, self.part[1]))
            if not self.interrupt.happened and self._left(budget).seconds > 0:
                problem, best = self.best
                self.part = (0.5, 0.5)
                self.run(problem, [problem.strategy(best.native.best)], self._left(budget))
        except KeyboardInterrupt:
            self.interrupt.happened = True

    def _left(self, budget: Budget, share: float = 1.0) -> Budget:
        """Of the whole; a share of it in proposals where these are counted, since no clock may decide then."""
        seconds = budget.seconds - (monotonic() - self.begun)
        if share == 1.0:
            return Budget(seconds, NEVER if budget.is_timed else max(budget.proposals - self.num_proposals, 1))
        return Budget(budget.seconds * share if budget.is_timed else seconds, budget.part(share).proposals)

    def run(self, problem: Problem, initial: Sequence[str | Strategy], budget: Budget) -> None:
        groups = _levels(problem, initial)
        limit = budget.seconds if budget.is_timed and budget.seconds < inf else None
        deadline = StartDeadline(problem.topology, limit, partial(self.tell, "looking for a start"), self.interrupt)
        starts = starts_of(problem, initial, groups, deadline)
        left = Budget(max(budget.seconds - deadline.seconds, budget.seconds / 2), budget.proposals)
        self.offsets.append((self.num_proposals, monotonic() - self.begun))
        chains = self._chains(problem, left)
        self.done.append((problem, chains))
        if self.interrupt.happened:
            self.stop()

        def walk(chain: Chain) -> None:
            first = chain.place % len(starts)
            own = [*starts[first:], *starts[:first]]
            chain.go(own[0](chain, groups[-1]))  # so that there is a best, however short the time
            METHODS[self.method](chain, groups, own, self.temperature)

        _run_all(walk, chains, self._tell_best, self.stop)

    def _chains(self, problem: Problem, budget: Budget) -> list[Chain]:
        """Each with random numbers of its own, and only those that have anything to spend."""
        found = []
        later = f" {len(self.done)}" if self.done else ""  # the first round's are those of a search with one
        for place, own in enumerate(budget.among(self.num_chains)):
            seed = f"{self.seed} {place}{later}"
            native = problem.chain(seed, self.engine)
            found.append(Chain(native, problem.options, own, seed=seed, place=place))
        return found

    def _tell_best(self) -> None:
        self._report("searching", max(chain.share for chain in self.done[-1][1]))

    @property
    def best(self) -> tuple[Problem, Chain]:
        """Of equal ones the last, which knows more of its neighbours."""
        every = [(problem, chain) for problem, chains in self.done for chain in chains]
        return min(reversed(every), key=lambda pair: pair[1].cost)

    @property
    def _best_ns(self) -> float:
        overflow, makespan = self.best[1].cost
        return inf if overflow else makespan

    @property
    def _best_seconds(self) -> float | None:
        return None if not self.done or self._best_ns == inf else self._best_ns * 1e-9

    @property
    def num_proposals(self) -> int:
        return sum(chain.native.num_proposals for _, chains in self.done for chain in chains)

    def result(self) -> SearchResult:
        problem, best = self.best
        if best.native.best_overflow:
            raise SoapstoneError(_too_large(problem, best))
        return SearchResult(
            problem.strategy(best.native.best),
            best.native.best_makespan * 1e-9,
            self._history(best),
            self.num_proposals,
            monotonic() - self.begun,
            *best.locally_optimal,
            self.interrupt.happened,
        )

    def _history(self, winner: Chain) -> tuple[Improvement, ...]:
        """Of the best chain of each round up to the winner's, what improved on all before."""
        found: list[Improvement] = []
        for (proposals, seconds), (_, chains) in zip(self.offsets, self.done):
            best = winner if winner in chains else min(chains, key=lambda chain: chain.cost)
            own = [Improvement(proposals + count, seconds + at, ns * 1e-9) for count, at, ns in best.native.history]
            least = found[-1].makespan if found else inf
            found += [each for each in own if each.makespan < least] if found else own
            if best is winner:
                break
        return tuple(found)


def _levels(problem: Problem, initial: Sequence[str | Strategy]) -> list[Groups]:
    """With microbatches ops on different devices are stages, which are not tied."""
    found = levels(problem.graph)
    first = next((each for each in initial if isinstance(each, Strategy)), None)
    if problem.microbatches == 1 or first is None:
        return found
    return apart(found, [frozenset(first[op.name].devices) for op in problem.graph.ops])


def _run_all(
    run: Callable[[Chain], None], chains: list[Chain], tell: Callable[[], None], stop: Callable[[], None]
) -> None:
    """Run every chain on a thread of its own."""
    with ThreadPoolExecutor(len(chains)) as pool:
        futures = [pool.submit(run, chain) for chain in chains]
        left: set[Future[None]] = set(futures)
        try:
            while left and not any(future.exception() for future in futures if future.done()):
                _, left = wait(left, TICK)
                tell()
        finally:
            if left:
                stop()
            wait(futures)
    with translated_errors():
        for future in futures:
            future.result()


def _too_large(problem: Problem, best: Chain) -> str:
    peak = problem.played(best.native.best).peak(problem.num_states, problem.num_temporaries)
    needs = [int(n) + workspace_of(device) for n, device in zip(peak, problem.topology.devices)]
    pairs = [(n - device.memory, device) for n, device in zip(needs, problem.topology.devices)]
    over, device = max(pairs, key=lambda pair: pair[0])
    wanted, has = scaled(device.memory + over, "B"), scaled(device.memory, "B")
    return (
        f"no strategy that was found fits: the closest needs {wanted} on {device.name}, which has {has}, "
        f"{scaled(over, 'B')} too much; a smaller batch, more devices, bfloat16, or an optimizer with fewer states "
        "would help, and a longer search may; memory_limit=False (--no-memory-limit) searches without the limit"
    )
