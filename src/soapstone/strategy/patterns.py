"""Configurations by pattern: which op takes which row, and the fewest rows that say the same.

An op takes the row of its own name, else of the pattern that fits it with the most characters beside its stars, the
first of several; else the default. What a pattern or the default says is fitted to the op.

Folding starts from the commonest configuration as the default, and tries patterns for what that gets wrong: ops' names
with a star for every number, then for all numbers but one, and so on. A pattern is taken where it sets more ops right
than it sets wrong, not counting its own row. What is wrong in the end gets rows of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import combinations

from ..graph import Op, OperatorGraph
from .configuration import Configuration

Rows = dict[str, Configuration]
_WILD = frozenset("*?[")
MOST_NUMBERS = 4  # of a name, in patterns that keep some of them


def assigned(
    rows: Mapping[str, Configuration], default: Configuration | None, graph: OperatorGraph
) -> dict[str, str | None]:
    """The row that each op takes, by name; None for the default. Where there is none either, the op is left out."""
    named = (name for name in rows if is_pattern(name) and name not in graph)
    patterns = sorted(named, key=_specificity, reverse=True)
    found: dict[str, str | None] = {}
    for op in graph.ops:
        row = op.name if op.name in rows else next((pattern for pattern in patterns if fits(op, pattern)), None)
        if row is not None or default is not None:
            found[op.name] = row
    return found


def is_pattern(name: str) -> bool:
    return not _WILD.isdisjoint(name)


def fits(op: Op, pattern: str) -> bool:
    """Whether a pattern's row is for an op."""
    return fnmatchcase(op.name, pattern)


def folded(graph: OperatorGraph, configurations: Mapping[str, Configuration]) -> tuple[Configuration | None, Rows]:
    """A default, where one helps, and rows from which every op gets its own configuration."""
    (common, _), *_ = Counter(configurations.values()).most_common(1)
    folding = _Folding(graph, configurations, common)
    for kept in range(MOST_NUMBERS + 1):
        candidates: dict[str, list[str]] = {}
        for name in folding.wrong():
            for pattern in _patterns(name, kept):
                candidates.setdefault(pattern, []).append(name)
        for pattern, names in candidates.items():
            if len(names) > 1:
                folding.consider(pattern, names)
    rows = {**folding.rows, **{name: configurations[name] for name in folding.wrong()}}
    takes = assigned(rows, common, graph)
    rest = [name for name, row in takes.items() if row is None]
    default = common if len(rest) > 1 else None  # a default for one op is that op's row
    if default is None:
        rows.update({name: configurations[name] for name in rest})
        takes.update({name: name for name in rest})
    in_order = {row: rows[row] for row in takes.values() if row is not None}
    if assigned(in_order, default, graph) == takes:
        return default, in_order
    return default, {row: rows[row] for row in rows if row in in_order}  # of equally specific ones the first counts


class _Folding:
    """Rows so far, and what each op gets from them."""

    def __init__(self, graph: OperatorGraph, wanted: Mapping[str, Configuration], default: Configuration) -> None:
        self.graph, self.wanted = graph, wanted
        self.rows: Rows = {}
        self._found = {op.name: (-1, default.fitted(op)) for op in graph.ops}  # how specific, and what

    def wrong(self) -> list[str]:
        return [name for name, (_, found) in self._found.items() if found != self.wanted[name]]

    def consider(self, pattern: str, names: list[str]) -> None:
        """Add a row for the commonest configuration of these ops where that saves rows."""
        (common, _), *_ = Counter(self.wanted[name] for name in names).most_common(1)
        place = _specificity(pattern)
        changed = {op.name: (place, common.fitted(op)) for op in self._taking(pattern, place)}
        gain = sum(
            (found == self.wanted[name]) - (self._found[name][1] == self.wanted[name])
            for name, (_, found) in changed.items()
        )
        if gain > 1:
            self.rows[pattern] = common
            self._found.update(changed)

    def _taking(self, pattern: str, place: int) -> Iterator[Op]:
        return (op for op in self.graph.ops if self._found[op.name][0] < place and fits(op, pattern))


def _specificity(pattern: str) -> int:
    return len(pattern.replace("*", ""))


def _patterns(name: str, kept: int) -> Iterator[str]:
    """The name with a star for each number but for so many."""
    words = re.split(r"(\d+)", name)
    places = range(1, len(words), 2)
    if len(places) <= kept or (kept and len(places) > MOST_NUMBERS) or is_pattern(name):
        return
    for chosen in combinations(places, kept):
        yield "".join("*" if place in places and place not in chosen else word for place, word in enumerate(words))
