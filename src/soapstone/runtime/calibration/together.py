"""What talks at once, to show what its links share; and the sets of ranks whose all-reduces are measured."""

from __future__ import annotations

from itertools import combinations

from ..transports import Pair
from .classes import next_node
from .seats import Seats

PORT, NODE, NETWORK = (
    "what a rank sends and receives at once",
    "what all ranks of a node send at once",
    "all nodes at once",
)


def inside_at_once(seats: Seats) -> dict[str, list[Pair]]:
    """Messages of one rank with all others of its node, and of all pairs of the node. One pair shows both."""
    first = max(seats.nodes, key=len)
    pairs = both_ways(combinations(first, 2))
    if len(first) < 2:
        return {}
    if len(first) == 2:
        return {NODE: pairs}
    return {PORT: [pair for pair in pairs if first[0] in pair], NODE: pairs}


def out_of(seats: Seats, node: int) -> list[Pair]:
    """A message of each rank of a node to a rank of the next one."""
    ranks, others = seats.nodes[node], seats.nodes[next_node(seats, node)]
    return [(rank, others[i % len(others)]) for i, rank in enumerate(ranks)]


def both_ways(pairs: list[Pair] | combinations[Pair]) -> list[Pair]:
    return [way for a, b in pairs for way in ((a, b), (b, a))]


def groups_of(seats: Seats) -> dict[tuple[int, int], tuple[int, ...]]:
    """By the number of nodes and of ranks on each, the first such: both 1, 2, 4, 8, ... and all there are."""
    nodes = sorted(seats.nodes, key=len, reverse=True)
    found = {}
    for count in _powers(len(nodes)):
        for each in _powers(len(nodes[0])):
            ranks = sorted(rank for node in nodes[:count] for rank in node[:each])
            if len(ranks) > 1:
                found[count, each] = tuple(ranks)
    return found


def _powers(most: int) -> list[int]:
    """1, 2, 4, 8, ... and the most."""
    return sorted({2**i for i in range(most.bit_length())} | {most})
