"""What a person sees of a strategy: layers, and blocks that repeat.

A *layer* is one op, or several that do the same next to the same layers and are configured alike, such as the 40 steps
of one recurrent layer. A *fold* is a stack of blocks, known by the number in their names (`blocks.0`, `blocks.1`),
whose layers are alike in kind, size and configuration.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ..graph import Op, OperatorGraph
from ..searching import tied_layers
from ..strategy import Configuration, Strategy


@dataclass(frozen=True, slots=True)
class Layer:
    """Ops that are configured alike; `name` is theirs, or what their names have in common."""

    name: str
    ops: tuple[int, ...]
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Fold:
    """Repetitions of one block, each as the numbers of its layers."""

    name: str
    members: tuple[tuple[int, ...], ...]


def layers_of(strategy: Strategy) -> list[Layer]:
    """In the order of their first ops."""
    graph = strategy.graph
    found: list[Layer] = []
    for group in tied_layers(graph):
        alike: dict[Configuration, list[int]] = defaultdict(list)
        for i in group:
            alike[strategy[graph.ops[i].name]].append(i)
        found += [Layer(_name(graph, ops), tuple(ops), configuration) for configuration, ops in alike.items()]
    return sorted(found, key=lambda layer: layer.ops[0])


def folds_of(graph: OperatorGraph, layers: list[Layer]) -> list[Fold]:
    """Runs of blocks with successive numbers that are alike. No layer is in two of them."""
    blocks: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, layer in enumerate(layers):
        if (match := _NUMBERED.match(layer.name)) is not None:
            blocks[match["stack"]][int(match["number"])].append(number)
    found = []
    for stack, members in blocks.items():
        for run in _runs(members, partial(_signature, graph, layers)):
            found.append(Fold(f"{stack}.{run[0]}-{run[-1]}", tuple(tuple(members[i]) for i in run)))
    return found


def pattern_of(name: str) -> str:
    """A name without its numbers: all blocks' attention has one."""
    return re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", "*", name)


_NUMBERED = re.compile(r"(?P<stack>[^\d][^.]*(?:\.[^\d.][^.]*)*)\.(?P<number>\d+)\.")


def _name(graph: OperatorGraph, ops: list[int]) -> str:
    layers = {graph.ops[i].layer for i in ops}
    return layers.pop() if len(layers) == 1 and len(ops) > 1 else graph.ops[ops[0]].name


def _signature(graph: OperatorGraph, layers: list[Layer], member: Iterable[int]) -> Hashable:
    return tuple(
        (len(layers[i].ops), _work(graph.ops[layers[i].ops[0]]), layers[i].configuration, _within(layers[i].name))
        for i in member
    )


def _work(op: Op) -> Hashable:
    return op.kind, tuple((dim.name, dim.size) for dim in op.dims)


def _within(name: str) -> str:
    match = _NUMBERED.match(name)
    return name if match is None else name[match.end() :]


def _runs(members: Mapping[int, list[int]], signature: Callable[[list[int]], Hashable]) -> list[list[int]]:
    """Successive numbers whose members are alike, where there are several."""
    runs: list[list[int]] = []
    for number in sorted(members):
        last = runs[-1][-1] if runs else None
        if last == number - 1 and signature(members[last]) == signature(members[number]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run for run in runs if len(run) > 1]
