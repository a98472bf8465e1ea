"""The space as the core's chains know it: tables of configurations, and moves that choose from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ..simulator import KnownTimes
from ..space import Space
from ..strategy import SHARDS, Native
from .tying import Groups

# Ops, the table that they choose from, what else they may have, whether parts then go to any device, the ops whose
# shard may change, and whether they may be recomputed.
Move = tuple[list[int], int, list[Native], bool, list[int], bool]


class Options:
    """The tables, with the times of all that is in them asked for. `progress` hears the share that is known."""

    def __init__(
        self, space: Space, times: KnownTimes, progress: Callable[[float], None], *, sharding: bool = False
    ) -> None:
        self.space, self.graph = space, space.graph
        self.tables: list[list[Native]] = []
        self._table_of: list[int] = []
        known: dict[object, int] = {}
        for op in self.graph.ops:
            key = tuple((dim.name, dim.size, dim.splittable) for dim in op.dims)
            if key not in known:
                known[key] = len(self.tables)
                self.tables.append([c.native(op) for c in space.enumerated(op)])
            self._table_of.append(known[key])
        self._compact = len(self.tables)  # the same tables again, with only devices next to one another
        compact = [[entry for entry in table if _is_compact(entry[1])] for table in self.tables]
        self._plain = 2 * self._compact  # and without splits of what ops sum over; each split once
        self.tables += [*compact, *self._plain_tables()]
        self._own = [{c: c.native(op) for c in space.own(op.name)} for op in self.graph.ops]
        self.recomputes = False  # until something does not fit
        choice = sharding and space.topology.num_devices > 1
        self._sharers_of = {op: sharers for sharers in self.graph.sharers for op in sharers} if choice else {}
        self._ask(times, progress)

    def _ask(self, times: KnownTimes, progress: Callable[[float], None]) -> None:
        degrees = [list({tuple(degrees) for degrees, *_ in table}) for table in self.tables]
        one_of_each = [times.kinds.index(kind) for kind in set(times.kinds)]
        wanted = []
        for index in range(len(self.graph.ops)):
            own = [tuple(native[0]) for native in self._own[index].values()]
            splits = [*(degrees[self._table_of[index]] if times.asks_for[index] == index else ()), *own]
            wanted += [(index, split, one_of_each) for split in splits]
        times.fill_all(wanted, progress)

    @property
    def shards(self) -> bool:
        """Whether the shard of some op may change."""
        return bool(self._sharers_of)

    def table(self, op: int) -> list[Native]:
        """What is enumerated for an op."""
        return self.tables[self._table_of[op]]

    def all_of(self, op: int) -> list[Native]:
        """Everything that an op may have."""
        return [*self.table(op), *self._own[op].values()]

    def num_neighbours(self, groups: Groups) -> int:
        return sum(
            len(self.tables[table]) + len(own) + len(SHARDS) * bool(sharers) + 2 * again
            for _, table, own, _, sharers, again in self.moves(groups)
        )

    def moves(self, groups: Groups, *, compact: bool = False) -> list[Move]:
        """One for each group that has a choice; where they are compact, of devices next to one another."""
        found = []
        for group in groups:
            own = [native for c, native in self._own[group[0]].items() if all(c in self._own[i] for i in group)]
            table = self._table_of[group[0]] + compact * self._compact
            if len(self.tables[table]) + len(own) > 1:
                again = self.recomputes and all(self.graph.ops[op].backward for op in group)
                found.append((group, table, own, False, self._sharers(group), again))
        return found

    def _sharers(self, group: list[int]) -> list[int]:
        """Those of a group that train parameters, and all who share these."""
        return sorted({i for op in group for i in self._sharers_of.get(op, ())})

    def moves_anywhere(self) -> list[Move]:
        """FlexFlow's: one for each op that has a choice, of any split but those of what it sums over, with any device
        for any part."""
        tables = [table + self._plain for table in self._table_of]
        choice = self.space.topology.num_devices > 1
        return [
            ([op], table, [], True, [], False)
            for op, table in enumerate(tables)
            if choice or len(self.tables[table]) > 1
        ]

    def _plain_tables(self) -> list[list[Native]]:
        found: dict[int, list[Native]] = {}
        for op, table in zip(self.graph.ops, self._table_of):
            if table not in found:
                summed = [dim.extra and dim.kind != "sample" for dim in op.dims]  # a loss may be split by sample
                splits = {tuple(entry[0]): entry for entry in reversed(self.tables[table])}
                found[table] = [
                    entry for degrees, entry in splits.items() if not any(n > 1 for n, s in zip(degrees, summed) if s)
                ]
        return [found[table] for table in range(len(found))]


def _is_compact(devices: list[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(devices))
