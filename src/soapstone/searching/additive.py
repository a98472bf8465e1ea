"""OptCNN (Jia et al., 2018) in our frame: the strategy with the least sum of op times and transfer times.

Nothing overlaps in that sum, so where an op runs does not matter, only how it is split: an op's options are degrees of
its output's dims over the first devices. The nodes of the elimination are ops, or, where their graph does not reduce,
tied layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..simulator import Training
from ..strategy import Strategy
from ..topology import Topology
from .elimination import Nodes, least, order_of
from .options import Native
from .problem import Problem
from .tying import Groups, levels


def optcnn(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    progress: Callable[[float], None] = lambda _: None,
) -> Strategy:
    """OptCNN's strategy. `progress` hears the share of the edges whose costs are known. Raises SoapstoneError where the
    graph reduces neither by ops nor by layers."""
    problem = Problem(graph, topology, training=training)
    for groups in reversed(levels(graph)):
        sums = _Sums(problem, groups)
        order = order_of(sums.sizes, sums.nodes.values())
        if order is not None:
            _, choice = least(sums.sizes, sums.tables(progress), order)
            return problem.strategy(sums.strategy(choice))
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
    """What is added up where some groups of ops are the nodes."""

    def __init__(self, problem: Problem, groups: Groups) -> None:
        self.problem, self.groups = problem, groups
        self.options = [_options(problem, group[0]) for group in groups]
        self.sizes = [len(options) for options in self.options]
        self._node_of = {op: node for node, group in enumerate(groups) for op in group}
        self.nodes = {edge: self._ends(edge) for edge in _edges(problem.graph)}

    def _ends(self, edge: _Edge) -> Nodes:
        return tuple(sorted({self._node_of[edge.maker], self._node_of[edge.reader]}))

    def tables(self, progress: Callable[[float], None]) -> dict[Nodes, np.ndarray]:
        problem, alike = self.problem, self.problem.graph.alike
        native = _core.Additive(problem.graph.native, problem.machine, problem.times.native)
        tables: dict[Nodes, np.ndarray] = {}
        for node, group in enumerate(self.groups):
            compute, sync = native.op(group[0], self.options[node])
            sums = len({problem.graph.ops[op].parameters for op in group})  # steps of one layer share theirs
            tables[(node,)] = (compute * len(group) + sync * sums).astype(float)
        known: dict[tuple[int, ...], np.ndarray] = {}
        for count, (edge, nodes) in enumerate(self.nodes.items()):
            progress(count / len(self.nodes))
            made, read = (self.options[self._node_of[op]] for op in (edge.maker, edge.reader))
            key = (alike[edge.maker], edge.output, alike[edge.reader], edge.input)
            if key not in known:
                known[key] = native.edge(edge.tensor, edge.place, made, read).reshape(len(made), len(read))
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
