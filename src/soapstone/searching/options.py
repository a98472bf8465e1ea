"""The space as the core's chains know it: tables of configurations, and moves that choose from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ..graph import Op
from ..simulator import KnownTimes
from ..space import Space
from ..strategy import Configuration
from .tying import Groups

Native = tuple[list[int], list[int]]  # degrees and devices
Move = tuple[list[int], int, list[Native]]  # ops, the table that they choose from, and what else they may have


class Options:
    """The tables, with the times of all that is in them asked for. `progress` hears the share that is known."""

    def __init__(self, space: Space, times: KnownTimes, progress: Callable[[float], None]) -> None:
        self.space, self.graph = space, space.graph
        self.tables: list[list[Native]] = []
        self._table_of: list[int] = []
        known: dict[object, int] = {}
        for op in self.graph.ops:
            key = tuple((dim.name, dim.size, dim.splittable) for dim in op.dims)
            if key not in known:
                known[key] = len(self.tables)
                self.tables.append([_native(op, c) for c in space.enumerated(op)])
            self._table_of.append(known[key])
        self._compact = len(self.tables)  # the same tables again, with only devices next to one another
        self.tables += [[entry for entry in table if _is_compact(entry[1])] for table in self.tables]
        self._own = [{c: _native(op, c) for c in space.own(op.name)} for op in self.graph.ops]
        self._ask(times, progress)

    def _ask(self, times: KnownTimes, progress: Callable[[float], None]) -> None:
        degrees = [list({tuple(degrees) for degrees, _ in table}) for table in self.tables]
        one_of_each = [times.kinds.index(kind) for kind in set(times.kinds)]
        wanted = []
        for index in range(len(self.graph.ops)):
            own = [tuple(native[0]) for native in self._own[index].values()]
            splits = [*(degrees[self._table_of[index]] if times.asks_for[index] == index else ()), *own]
            wanted += [(index, split, one_of_each) for split in splits]
        times.fill_all(wanted, progress)

    def table(self, op: int) -> list[Native]:
        """What is enumerated for an op."""
        return self.tables[self._table_of[op]]

    def all_of(self, op: int) -> list[Native]:
        """Everything that an op may have."""
        return [*self.table(op), *self._own[op].values()]

    def num_neighbours(self, groups: Groups) -> int:
        return sum(len(self.tables[table]) + len(own) for _, table, own in self.moves(groups))

    def moves(self, groups: Groups, *, compact: bool = False) -> list[Move]:
        """One for each group that has a choice; where they are compact, of devices next to one another."""
        found = []
        for group in groups:
            own = [native for c, native in self._own[group[0]].items() if all(c in self._own[i] for i in group)]
            table = self._table_of[group[0]] + compact * self._compact
            if len(self.tables[table]) + len(own) > 1:
                found.append((group, table, own))
        return found


def _is_compact(devices: list[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(devices))


def _native(op: Op, configuration: Configuration) -> Native:
    return configuration.degrees_of(op), list(configuration.devices)
