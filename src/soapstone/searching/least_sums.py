"""OptCNN (Jia et al., 2018) in our frame: the strategy with the least sum of op times and transfer times.

Nothing overlaps in that sum, so where an op runs does not matter, only how it is split: an op's options are degrees of
its output's dims over the first devices. The nodes of the elimination are ops, or, where their graph does not reduce,
tied layers; a search, which is short of time, ties first. On many devices the options of two ops make very many pairs:
so within a budget it begins with a few of each op and goes on with twice as many, until all are there or the time is
over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import numpy as np

from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..simulator import Training
from ..strategy import Native, Strategy
from ..topology import Topology
from .additive import Additive, Edge
from .chain import check_budget
from .elimination import Nodes, least, order_of
from .problem import Problem
from .tying import Groups, levels

FEW = 8  # options of an op to begin with


def optcnn(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    budget: float | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Strategy:
    """OptCNN's strategy, or the best of as many options as a budget of seconds does for. `progress` hears the share of
    the edges whose costs are known, or of the budget that is gone. Raises SoapstoneError where the graph reduces
    neither by ops nor by layers, or the budget is no time."""
    check_budget(budget)
    begun = monotonic()
    additive = Additive(Problem(graph, topology, training=training))
    finest_first = levels(graph)[::-1]
    if budget is None:
        return additive.problem.strategy(least_sum(additive, finest_first, None, progress)[1])
    found: list[tuple[float, list[Native]]] = []

    def is_over() -> bool:
        gone = (monotonic() - begun) / budget
        progress(min(gone, 1.0))
        return gone >= 1 and len(found) > 0

    for each in least_sums(additive, finest_first, is_over):
        found.append(each)
    progress(1.0)
    return additive.problem.strategy(min(found, key=lambda each: each[0])[1])


class _OverError(Exception):
    """The time is over."""


def least_sums(
    additive: Additive, tyings: Sequence[Groups], is_over: Callable[[], bool] = lambda: False
) -> Iterator[tuple[float, list[Native]]]:
    """The least sums of a few options, of twice as many, and so on to all of them, until the time is over, which is
    asked now and again, or so many do not reduce. Raises SoapstoneError where not even a few do."""

    def look_at_the_clock(_: float) -> None:
        if is_over():
            raise _OverError

    if is_over():
        return
    all_of_them = max(len(additive.choices(op).options) for op in range(len(additive.problem.graph.ops)))
    most = FEW
    while True:
        try:
            yield least_sum(additive, tyings, most, look_at_the_clock)
        except _OverError:
            return
        except SoapstoneError:
            if most == FEW:
                raise
            return
        if most >= all_of_them:
            return
        most *= 2


def least_sum(
    additive: Additive, tyings: Sequence[Groups], most: int | None, progress: Callable[[float], None] = lambda _: None
) -> tuple[float, list[Native]]:
    """The least sum and its strategy, where each op has at most so many options and ops are tied in the first way that
    reduces."""
    for groups in tyings:
        sums = TiedSums(additive, groups, most)
        order = order_of(sums.sizes, sums.nodes.values())
        if order is not None:
            total, choice = least(sums.sizes, sums.tables(progress), order)
            return total, sums.strategy(choice)
    raise SoapstoneError("this graph does not reduce by node and edge elimination, by ops or by layers; use search")


class TiedSums:
    """What is added up where some groups of ops are the nodes, each with at most so many options: its first op's."""

    def __init__(self, additive: Additive, groups: Groups, most: int | None) -> None:
        self.additive, self.groups = additive, groups
        self.sizes = [len(additive.choices(group[0]).options[:most]) for group in groups]
        self._node_of = {op: node for node, group in enumerate(groups) for op in group}
        self.nodes = {edge: self._ends(edge) for edge in additive.edges}

    def _ends(self, edge: Edge) -> Nodes:
        return tuple(sorted({self._node_of[edge.maker], self._node_of[edge.reader]}))

    def _own(self, node: int) -> np.ndarray:
        choices, group = self.additive.choices(self.groups[node][0]), self.groups[node]
        sums = len({self.additive.problem.graph.ops[op].parameters for op in group})  # steps of one layer share theirs
        own: np.ndarray = choices.compute * len(group) + choices.sync * sums
        return own[: self.sizes[node]].astype(float)

    def _between(self, edge: Edge) -> np.ndarray:
        made, read = self._node_of[edge.maker], self._node_of[edge.reader]
        firsts = self.groups[made][0], self.groups[read][0]
        table: np.ndarray = self.additive.transfers(edge, *firsts, self.sizes[made], self.sizes[read])
        return np.diagonal(table) if made == read else table if made < read else table.T

    def tables(self, progress: Callable[[float], None]) -> dict[Nodes, np.ndarray]:
        tables: dict[Nodes, np.ndarray] = {(node,): self._own(node) for node in range(len(self.groups))}
        for count, (edge, nodes) in enumerate(self.nodes.items()):
            progress(count / len(self.nodes))
            tables[nodes] = tables.get(nodes, 0) + self._between(edge)
        progress(1.0)
        return tables

    def strategy(self, choice: list[int]) -> list[Native]:
        chosen = [self.additive.choices(group[0]).options[at] for group, at in zip(self.groups, choice)]
        return [chosen[node] for _, node in sorted(self._node_of.items())]
