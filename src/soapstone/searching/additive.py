"""OptCNN (Jia et al., 2018) in our frame: the strategy with the least sum of op times and transfer times.

Nothing overlaps in that sum, so where an op runs does not matter, only how it is split: an op's options are degrees of
its output's dims over the first devices. The nodes of the elimination are ops, or, where their graph does not reduce,
tied layers. On many devices the options of two ops make very many pairs: so within a budget it begins with a few of
each op and goes on with twice as many, until all are there or the time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import numpy as np

from .. import _core
from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..simulator import Training
from ..strategy import Strategy
from ..topology import Topology
from .chain import check_budget
from .elimination import Nodes, least, order_of
from .options import Native
from .problem import Problem
from .tying import Groups, levels

FEW = 12  # options of an op to begin with


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
    problem = Problem(graph, topology, training=training)
    if budget is None:
        return problem.strategy(least_sum(problem, None, progress))
    found = least_sum(problem, FEW)
    for most in _doubled(FEW, problem):
        better = least_sum_by(begun + budget, problem, most, lambda: progress(min((monotonic() - begun) / budget, 1.0)))
        if better is None:
            break
        found = better
    progress(1.0)
    return problem.strategy(found)


class _OverError(Exception):
    """The time is over."""


def least_sum_by(
    end: float, problem: Problem, most: int, tick: Callable[[], None] = lambda: None
) -> list[Native] | None:
    """The least sum if it is found by then, on the clock of `monotonic`; `tick` is called now and again."""

    def look_at_the_clock(_: float) -> None:
        tick()
        if monotonic() >= end:
            raise _OverError

    try:
        return least_sum(problem, most, look_at_the_clock)
    except _OverError:
        return None


def _doubled(few: int, problem: Problem) -> Iterator[int]:
    """Twice as many options as before, until that is all there are."""
    largest = max(len(_options(problem, op)) for op in range(len(problem.graph.ops)))
    while few < largest:
        few *= 2
        yield few


def least_sum(problem: Problem, most: int | None, progress: Callable[[float], None] = lambda _: None) -> list[Native]:
    """The strategy with the least sum, where each op has at most so many options."""
    for groups in reversed(levels(problem.graph)):
        sums = _Sums(problem, groups, most)
        order = order_of(sums.sizes, sums.nodes.values())
        if order is not None:
            _, choice = least(sums.sizes, sums.tables(progress), order)
            return sums.strategy(choice)
    raise SoapstoneError("this graph does not reduce by node and edge elimination, by ops or by layers; use search")


@dataclass(frozen=True)
class _Edge:
    """Op `reader` has its input number `input` from op `maker`, as reader number `place` of the tensor."""

    tensor: int
    maker: int
    output: int
    reader: int
    input: int
    place: int


class _Sums:
    """What is added up where some groups of ops are the nodes, each with at most so many options."""

    def __init__(self, problem: Problem, groups: Groups, most: int | None) -> None:
        self.problem, self.groups = problem, groups
        self._native = _core.Additive(problem.graph.native, problem.machine, problem.times.native)
        self._costs: dict[int, np.ndarray] = {}  # by node
        self.options = [self._cheapest(node, most) for node in range(len(groups))]
        self.sizes = [len(options) for options in self.options]
        self._node_of = {op: node for node, group in enumerate(groups) for op in group}
        self.nodes = {edge: self._ends(edge) for edge in _edges(problem.graph)}

    def _cheapest(self, node: int, most: int | None) -> list[Native]:
        """A node's options: those that split the fewest dims first, since neighbours will have the like, and of these
        the cheapest by themselves."""
        group = self.groups[node]
        options = _options(self.problem, group[0])
        compute, sync = self._native.op(group[0], options)
        sums = len({self.problem.graph.ops[op].parameters for op in group})  # steps of one layer share theirs
        costs = (compute * len(group) + sync * sums).astype(float)
        num_split = np.array([sum(degree > 1 for degree in degrees) for degrees, _ in options])
        chosen = np.lexsort((costs, num_split))[:most]
        self._costs[node] = costs[chosen]
        return [options[i] for i in chosen]

    def _ends(self, edge: _Edge) -> Nodes:
        return tuple(sorted({self._node_of[edge.maker], self._node_of[edge.reader]}))

    def tables(self, progress: Callable[[float], None]) -> dict[Nodes, np.ndarray]:
        alike = self.problem.graph.alike
        tables: dict[Nodes, np.ndarray] = {(node,): costs for node, costs in self._costs.items()}
        known: dict[tuple[int, ...], np.ndarray] = {}
        for count, (edge, nodes) in enumerate(self.nodes.items()):
            progress(count / len(self.nodes))
            made, read = (self.options[self._node_of[op]] for op in (edge.maker, edge.reader))
            key = (alike[edge.maker], edge.output, alike[edge.reader], edge.input)
            if key not in known:
                known[key] = self._native.edge(edge.tensor, edge.place, made, read).reshape(len(made), len(read))
            table = known[key]
            if len(nodes) == 1:
                table = table.diagonal()
            elif self._node_of[edge.maker] != nodes[0]:
                table = table.T
            tables[nodes] = tables.get(nodes, 0) + table
        progress(1.0)
        return tables

    def strategy(self, choice: list[int]) -> list[Native]:
        return [self.options[node][choice[node]] for _, node in sorted(self._node_of.items())]


def _options(problem: Problem, index: int) -> list[Native]:
    dims = problem.graph.ops[index].dims
    return [
        (degrees, devices)
        for degrees, devices in problem.options.table(index)
        if devices == list(range(len(devices)))
        and not any(dim.extra and degree > 1 for dim, degree in zip(dims, degrees))
    ]


def _edges(graph: OperatorGraph) -> list[_Edge]:
    makers = {o.tensor: (i, number) for i, op in enumerate(graph.ops) for number, o in enumerate(op.outputs)}
    places: dict[int, int] = {}
    edges = []
    for reader, op in enumerate(graph.ops):
        for number, operand in enumerate(op.inputs):
            place = places[operand.tensor] = places.get(operand.tensor, -1) + 1
            if operand.tensor in makers:
                edges.append(_Edge(operand.tensor, *makers[operand.tensor], reader, number, place))
    return edges
