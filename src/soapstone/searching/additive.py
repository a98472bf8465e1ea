"""What OptCNN adds up: what an op's options cost by themselves, and what pairs of them cost to the op that makes a
tensor and one that reads it. Alike ops share what is known, and when more options are looked at, only what is new is
computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import _core
from ..graph import OperatorGraph
from ..strategy import Native
from .problem import Problem


@dataclass(frozen=True)
class Edge:
    """Op `reader` has its input number `input` from op `maker`, as reader number `place` of the tensor."""

    tensor: int
    maker: int
    output: int
    reader: int
    input: int
    place: int


@dataclass(frozen=True)
class Choices:
    """An op's options and the nanoseconds of each, those first that should be looked at first: in turn one that splits
    few dims, since neighbours will have the like, and one that is cheap by itself."""

    options: list[Native]
    compute: np.ndarray
    sync: np.ndarray


class Additive:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.edges = _edges(problem.graph)
        self._native = _core.Additive(problem.graph.native, problem.machine, problem.times.native)
        self._choices: dict[int, Choices] = {}  # by what is alike
        self._transfers: dict[tuple[int, ...], np.ndarray] = {}

    def choices(self, op: int) -> Choices:
        key = self.problem.graph.alike[op]
        if key not in self._choices:
            options = _options(self.problem, op)
            compute, sync = self._native.op(op, options)
            num_split = np.array([sum(degree > 1 for degree in degrees) for degrees, *_ in options])
            order = _in_turn(np.lexsort((compute + sync, num_split)), np.argsort(compute + sync, kind="stable"))
            self._choices[key] = Choices([options[i] for i in order], compute[order], sync[order])
        return self._choices[key]

    def transfers(self, edge: Edge, made_as: int, read_as: int, num_made: int, num_read: int) -> np.ndarray:
        """Nanoseconds of an edge for the first options of two ops, a row for each of the maker's. The maker has those
        of op `made_as`, and the reader those of `read_as`."""
        alike = self.problem.graph.alike
        ends = (edge.maker, edge.reader, made_as, read_as)
        key = (*(alike[op] for op in ends), edge.output, edge.input)
        known = self._transfers.get(key, np.zeros((0, 0), np.int64))
        rows, columns = known.shape
        if rows >= num_made and columns >= num_read:
            return known[:num_made, :num_read]
        made = self.choices(made_as).options[: max(num_made, rows)]
        read = self.choices(read_as).options[: max(num_read, columns)]
        below = self._pairs(edge, made[rows:], read[:columns])
        beside = self._pairs(edge, made, read[columns:])
        self._transfers[key] = np.hstack([np.vstack([known, below]), beside])
        return self._transfers[key][:num_made, :num_read]

    def _pairs(self, edge: Edge, made: list[Native], read: list[Native]) -> np.ndarray:
        return self._native.edge(edge.tensor, edge.place, made, read).reshape(len(made), len(read))


def _in_turn(*orders: np.ndarray) -> list[int]:
    return list(dict.fromkeys(int(i) for each in zip(*orders) for i in each))


def _options(problem: Problem, op: int) -> list[Native]:
    """Degrees of an op's output dims, over the first devices."""
    dims = problem.graph.ops[op].dims
    return [
        option
        for option in problem.options.table(op)
        for degrees, devices in [option[:2]]
        if devices == list(range(len(devices)))
        and not any(dim.extra and degree > 1 for dim, degree in zip(dims, degrees))
    ]


def _edges(graph: OperatorGraph) -> list[Edge]:
    makers = {o.tensor: (i, number) for i, op in enumerate(graph.ops) for number, o in enumerate(op.outputs)}
    places: dict[int, int] = {}
    edges = []
    for reader, op in enumerate(graph.ops):
        for number, operand in enumerate(op.inputs):
            place = places[operand.tensor] = places.get(operand.tensor, -1) + 1
            if operand.tensor in makers:
                edges.append(Edge(operand.tensor, *makers[operand.tensor], reader, number, place))
    return edges
