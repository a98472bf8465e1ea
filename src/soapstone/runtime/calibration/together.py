"""Chooses the messages that are sent at once, to measure what links share, and the groups of ranks whose all-reduces
are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from ..transports import Pair
from .classes import Representatives, next_node
from .seats import Seats

PORT, NODE, NETWORK = (
    "what a rank sends and receives at once",
    "what all ranks of a node send at once",
    "all nodes at once",
)


Groups = dict[tuple[int, int], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Selection:
    """What to measure: the pairs and nodes that stand for others, the groups for all-reduces by their number of nodes
    and of ranks on each, and the messages inside each node that are sent at once."""

    seats: Seats
    pairs: Representatives[Pair]
    nodes: Representatives[int]
    groups: Groups
    inside: dict[str, list[list[Pair]]]

    @property
    def everything_out(self) -> list[Pair]:
        """What all nodes send at once and receive."""
        return [pair for node in range(len(self.seats.nodes)) for pair in both_ways(out_of(self.seats, node))]


def inside_at_once(seats: Seats) -> dict[str, list[list[Pair]]]:
    """For each node the messages between one rank and all others of the node, and those of all pairs of the node. All
    nodes send at once, as they do in training. With two ranks a node, both are the same, and measured once."""
    most = len(largest(seats)[0])
    if most < 2:
        return {}
    nodes = [list(combinations(ranks, 2)) for ranks in largest(seats)]
    everyone = [both_ways(pairs) for pairs in nodes]
    if most == 2:
        return {NODE: everyone}
    return {PORT: [both_ways(pairs[: most - 1]) for pairs in nodes], NODE: everyone}


def out_of(seats: Seats, node: int) -> list[Pair]:
    """A message from each rank of a node to a rank of the next node."""
    ranks, others = seats.nodes[node], seats.nodes[next_node(seats, node)]
    return [(rank, others[i % len(others)]) for i, rank in enumerate(ranks)]


def both_ways(pairs: Iterable[Pair]) -> list[Pair]:
    return [way for a, b in pairs for way in ((a, b), (b, a))]


def groups_of(seats: Seats) -> Groups:
    """The groups to measure, by their number of nodes and of ranks on each: both are 1, 2, 4, 8, ... and the most there
    are. Inside nodes there is a group on each node, and these are measured at once."""
    nodes = sorted(seats.nodes, key=len, reverse=True)
    found = {}
    for each in _powers(len(nodes[0])):
        if each > 1:
            found[1, each] = [tuple(ranks[:each]) for ranks in largest(seats)]
        for count in _powers(len(nodes)):
            if count > 1:
                found[count, each] = [tuple(sorted(rank for node in nodes[:count] for rank in node[:each]))]
    return found


def largest(seats: Seats) -> list[list[int]]:
    """The ranks of the nodes with the most ranks."""
    most = max(map(len, seats.nodes))
    return [ranks for ranks in seats.nodes if len(ranks) == most]


def _powers(most: int) -> list[int]:
    """1, 2, 4, 8, ... and the most."""
    return sorted({2**i for i in range(most.bit_length())} | {most})
