"""Minimise a sum of tables over choices: node and edge elimination (Jia et al., 2018).

Each table costs the choices of one or two nodes. A table beside another over the same nodes is added to it. A node is
eliminated by a table over its neighbours that holds what its best choice costs for each of theirs; the choices are read
back in reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

LARGEST = 2**24  # entries of a table that an elimination may go through

Nodes = tuple[int, ...]  # increasing


def order_of(sizes: Sequence[int], edges: Iterable[Nodes]) -> list[int] | None:
    """The nodes with a choice, in an order of elimination that keeps every table small, each time the cheapest; None
    where there is none. `sizes` are the numbers of choices."""
    near: dict[int, set[int]] = {node: set() for node, size in enumerate(sizes) if size > 1}
    for nodes in edges:
        for node in _open(sizes, nodes):
            near[node].update(_open(sizes, nodes))
    order = []
    while near:
        cost, node = min((prod(sizes[i] for i in around | {node}), node) for node, around in near.items())
        if cost > LARGEST:
            return None
        around = near.pop(node) - {node}
        for other in around:
            near[other] |= around
            near[other].discard(node)
        order.append(node)
    return order


def least(sizes: Sequence[int], tables: Mapping[Nodes, np.ndarray], order: Sequence[int]) -> tuple[float, list[int]]:
    """The least sum, and the choice of each node. Axis i of a table belongs to the i-th of its nodes."""
    left: dict[Nodes, np.ndarray] = {}
    for nodes, table in tables.items():
        rest = _open(sizes, nodes)
        left[rest] = left.get(rest, 0) + table.reshape([sizes[i] for i in rest])
    picks: list[tuple[int, Nodes, np.ndarray]] = []
    total = float(left.pop((), np.zeros(())))
    for node in order:
        mine = [nodes for nodes in left if node in nodes]
        around: Nodes = tuple(sorted({i for nodes in mine for i in nodes} - {node}))
        joint = np.zeros([sizes[node], *(sizes[i] for i in around)])
        for nodes in mine:
            joint += _spread(left.pop(nodes), nodes, (node, *around))
        picks.append((node, around, joint.argmin(0)))
        best = joint.min(0)
        if around:
            left[around] = left[around] + best if around in left else best
        else:
            total += float(best)
    choice = [0] * len(sizes)
    for node, around, pick in reversed(picks):
        choice[node] = int(pick[tuple(choice[i] for i in around)])
    return total, choice


def _open(sizes: Sequence[int], nodes: Nodes) -> Nodes:
    """Those that have a choice."""
    return tuple(i for i in nodes if sizes[i] > 1)


def _spread(table: np.ndarray, nodes: Nodes, over: Nodes) -> np.ndarray:
    """The table with an axis for each of the nodes in `over`, of size 1 where it does not depend on one."""
    places = [nodes.index(i) for i in over if i in nodes]
    shape = [table.shape[nodes.index(i)] if i in nodes else 1 for i in over]
    return table.transpose(places).reshape(shape)
