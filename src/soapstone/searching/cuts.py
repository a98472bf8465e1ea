"""How many microbatches a search looks at, and how many of them ops have in flight: its outer level.

Pipelines of all sizes, replicas x tensor parallelism x stages, are simulated with the usual number of microbatches, the
best of them with more and with fewer, with more of them in flight, and with the optimizer's state in shares. A number
of microbatches is worth a search where its best pipeline is not much slower than the best strategy that does not cut
the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..baselines import BASELINES, UNSHARDED, USUAL, grid
from ..errors import SoapstoneError
from ..graph import microbatch
from ..simulator import Simulator
from ..strategy import Strategy
from .chain import NEVER
from .problem import Problem
from .starts import SHARDED

MOST_EACH = 16  # microbatches for each stage
BEST = 3  # sizes that are looked at with other numbers of microbatches
WORTH = 1.1  # times the best time that is known: what begins slower is not searched
MOST = 4  # numbers of microbatches that get a share of the budget

Cost = tuple[bool, int]  # whether it does not fit, and ns
Sizes = tuple[int, int, int]


class Cuts:
    """What to begin with, for each number of microbatches that is worth a search, the best first; for the one that is
    `wanted`, whatever it is worth. Looks at no more where `is_over` says so."""

    def __init__(
        self,
        uncut: Problem,
        wanted: int | None,
        is_over: Callable[[], bool],
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.uncut, self.wanted, self.is_over, self.progress = uncut, wanted, is_over, progress
        self.graph, self.topology, self.sharding = uncut.whole, uncut.topology, uncut.options.shards
        self.found: dict[tuple[int, Sizes], list[tuple[Cost, Strategy]]] = {}  # by the number of microbatches

    def worth_a_search(self) -> list[tuple[Cost, list[Strategy]]]:
        if self.wanted is None and self.graph.has_batch_norm:
            return []
        uncut = self._uncut()
        sized = []
        usual = list(self._usual(accumulates=uncut[0]))
        for number, (sizes, count) in enumerate(usual):
            self.progress(0.5 * number / len(usual))
            sized.append((self._look(sizes, count), sizes))
        for number, (cost, sizes) in enumerate(sorted(sized)[:BEST]):
            self.progress(0.5 + 0.5 * number / BEST)
            if cost[0] or cost[1] <= 2 * WORTH * uncut[1]:
                self._look_closely(sizes)
        if self.wanted and not self.found:
            microbatch(self.graph, self.wanted)  # says why it cannot be cut so
            raise SoapstoneError(f"no pipeline has {self.wanted} microbatches; use another number of them")
        limit = (True, NEVER) if self.wanted else (uncut[0], int(WORTH * uncut[1]))
        return [found for found in self._best_sizes() if found[0] <= limit and found[0][1] < NEVER][:MOST]

    def _best_sizes(self) -> list[tuple[Cost, list[Strategy]]]:
        """For each number of microbatches, the strategies of the sizes that are best with it, the best first."""
        best: dict[int, tuple[Cost, list[Strategy]]] = {}
        for (count, _), tried in self.found.items():
            ranked = sorted(tried, key=lambda pair: pair[0])
            cost = ranked[0][0]
            if count not in best or cost < best[count][0]:
                best[count] = cost, [strategy for _, strategy in ranked]
        return sorted(best.values(), key=lambda pair: pair[0])

    def _uncut(self) -> Cost:
        names = (*UNSHARDED, *(SHARDED if self.sharding else ()))
        known = [BASELINES[name](self.graph, self.topology) for name in names]
        smaller = [*self.uncut.on_one_device(), *self.uncut.on_one_node()]
        return min(self._cost(each) for each in (*known, *map(self.uncut.strategy, smaller)))

    def _usual(self, *, accumulates: bool) -> Iterator[tuple[Sizes, int]]:
        """All sizes of a pipeline, with as many microbatches as are usual; with one stage where nothing uncut fits."""
        count = self.topology.num_devices
        for stages in _divisors(count)[0 if accumulates or self.wanted else 1 :]:
            for width in _divisors(count // stages):
                sizes = (count // stages // width, width, stages)
                if numbers := self._numbers(sizes):
                    yield sizes, max(n for n in numbers if n <= max(USUAL * stages, numbers[0]))

    def _numbers(self, sizes: Sizes) -> list[int]:
        """Of microbatches that leave each replica a sample."""
        samples = self.graph.num_samples
        return [n for n in _divisors(samples)[1:] if samples // n >= sizes[0] and n == (self.wanted or n)]

    def _look_closely(self, sizes: Sizes) -> None:
        """With more microbatches and fewer, and with more of them in flight: messages take their time, too."""
        stages = sizes[2]
        for count in self._numbers(sizes):
            if self.wanted or stages <= count <= MOST_EACH * stages:
                self._look(sizes, count)
                self._look(sizes, count, _with_twice_the_windows)
                cost = self._look(sizes, count, _without_windows)
                if cost[0] and self.sharding:
                    self._look(sizes, count, _sharded)

    def _look(self, sizes: Sizes, count: int, change: Callable[[Strategy], Strategy] = lambda same: same) -> Cost:
        try:
            strategy = change(grid(self.graph, self.topology, sizes, count))
        except SoapstoneError:  # samples meet, or nothing is left to split
            return True, NEVER
        tried = self.found.setdefault((count, sizes), [])
        if all(dict(strategy) != dict(known) for _, known in tried):
            tried.append((self._cost(strategy), strategy))
        return min(tried, key=lambda pair: pair[0])[0]

    def _cost(self, strategy: Strategy) -> Cost:
        if self.is_over():
            return True, NEVER
        played = Simulator(self.graph, self.topology, strategy, training=self.uncut.training)
        return bool(self.uncut.memory) and not played.fits, played.makespan_ns


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _with_twice_the_windows(strategy: Strategy) -> Strategy:
    return strategy.replace(
        {name: replace(each, in_flight=2 * each.in_flight) for name, each in strategy.items() if each.in_flight}
    )


def _without_windows(strategy: Strategy) -> Strategy:
    return strategy.replace({name: replace(each, in_flight=None) for name, each in strategy.items()})


def _sharded(strategy: Strategy) -> Strategy:
    return strategy.replace({name: replace(each, shard="optimizer") for name, each in strategy.items()})
