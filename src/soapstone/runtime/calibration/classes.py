"""Groups pairs of ranks, and nodes, into classes whose members should have the same numbers.

The first member of a class is measured for all. It is compared with the last member; if the two differ, every member of
the class is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..transports import Pair
from .seats import Seats

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Alike(Generic[T]):
    """A class of members that should be alike."""

    members: tuple[T, ...]

    @property
    def compared(self) -> tuple[T, ...]:
        """The first and the last member, which should differ most."""
        return tuple(dict.fromkeys((self.members[0], self.members[-1])))


class Representatives(Generic[T]):
    """The member that is measured for each member."""

    def __init__(self, classes: Iterable[Alike[T]], agree: Callable[[Alike[T]], bool]) -> None:
        self._of: dict[T, T] = {}
        for each in classes:
            folded = agree(each)
            self._of.update({member: each.members[0] if folded else member for member in each.members})

    def __getitem__(self, member: T) -> T:
        return self._of[member]

    @property
    def measured(self) -> list[T]:
        return list(dict.fromkeys(self._of.values()))


def classes_of_pairs(seats: Seats) -> list[Alike[Pair]]:
    """The classes of all pairs: two pairs are in one class if both are inside a node, or both between nodes, and their
    nodes are alike."""
    found: dict[Hashable, list[Pair]] = {}
    for a, b in [*seats.pairs_inside(), *seats.pairs_across()]:
        ends = [seats.like(seats.devices[rank].node) for rank in (a, b)]
        found.setdefault((seats.share_a_node((a, b)), *sorted(ends)), []).append((a, b))
    return [Alike(tuple(pairs)) for pairs in found.values()]


def classes_of_nodes(seats: Seats) -> list[Alike[int]]:
    """The classes of nodes: two nodes are in one class if they are alike, and the nodes after them are alike."""
    found: dict[Hashable, list[int]] = {}
    for node in range(len(seats.nodes)):
        found.setdefault((seats.like(node), seats.like(next_node(seats, node))), []).append(node)
    return [Alike(tuple(nodes)) for nodes in found.values()]


def next_node(seats: Seats, node: int) -> int:
    return (node + 1) % len(seats.nodes)
