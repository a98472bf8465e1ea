"""Which ops a search moves as one.

*Layers* are ops that share a parameter, such as the steps of one recurrent layer, and ops without parameters that do
the same next to the same layers, such as the attention of each step. *Blocks* are ops that do the same next to ops that
do the same, whatever their parameters: the repeated blocks of a transformer or an Inception network. Single ops are
the finest. Every group of a level lies inside one group of a coarser one, but for ops at the ends of a repetition.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from ..graph import Op, OperatorGraph

Groups = list[list[int]]
T = TypeVar("T")


def levels(graph: OperatorGraph) -> list[Groups]:
    """From the coarsest to single ops, without levels that tie no more than the next."""
    found = [_blocks(graph), tied_layers(graph), [[i] for i in range(len(graph.ops))]]
    return [groups for groups, finer in zip(found, [*found[1:], None]) if finer is None or len(groups) < len(finer)]


def apart(found: list[Groups], places: Sequence[Hashable]) -> list[Groups]:
    """The same levels without groups that lie in several places."""
    split = [_grouped([(number, places[op]) for number, op in _numbered(groups)]) for groups in found]
    return [groups for groups, finer in zip(split, [*split[1:], None]) if finer is None or len(groups) < len(finer)]


def _numbered(groups: Groups) -> list[tuple[int, int]]:
    """The group of each op, and the op."""
    return sorted(((number, op) for number, group in enumerate(groups) for op in group), key=lambda pair: pair[1])


def tied(strategy: Sequence[T], groups: Groups) -> list[T]:
    """A strategy with every op configured like the first of its group."""
    result = list(strategy)
    for group in groups:
        for op in group:
            result[op] = strategy[group[0]]
    return result


def tied_layers(graph: OperatorGraph) -> Groups:
    """Layers are known by their parameters, so only the others take colours from their neighbours."""
    owner: dict[str, str] = {}
    colours: list[Hashable] = []
    for op in graph.ops:
        name = next((owner[p] for p in op.parameters if p in owner), op.parameters[0] if op.parameters else "")
        owner.update(dict.fromkeys(op.parameters, name))
        colours.append((name, _shape(op)))
    free = [not op.parameters for op in graph.ops]
    for _ in range(2):
        colours = _refined(graph, colours, free)
    return _grouped(colours)


def _blocks(graph: OperatorGraph) -> Groups:
    colours: list[Hashable] = [graph.alike[i] for i in range(len(graph.ops))]
    return _grouped(_refined(graph, colours, [True] * len(colours)))


def _shape(op: Op) -> Hashable:
    return op.kind, tuple((dim.name, dim.size, dim.splittable) for dim in op.dims)


def _refined(graph: OperatorGraph, colours: list[Hashable], free: list[bool]) -> list[Hashable]:
    """Each free op's colour with those of the ops that it reads and that read it."""
    maker = graph.producer
    near: list[set[tuple[bool, Hashable]]] = [set() for _ in colours]
    for i, op in enumerate(graph.ops):
        for operand in op.inputs:
            if (source := maker.get(operand.tensor)) is not None:
                near[i].add((False, colours[source]))
                near[source].add((True, colours[i]))
    refined: list[Hashable] = [
        (colour, frozenset(around)) if is_free else colour for colour, around, is_free in zip(colours, near, free)
    ]
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(colour, len(numbers)) for colour in refined]


def _grouped(colours: list[Hashable]) -> Groups:
    groups: dict[Hashable, list[int]] = {}
    for i, colour in enumerate(colours):
        groups.setdefault(colour, []).append(i)
    return list(groups.values())
