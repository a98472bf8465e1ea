"""The configurations that a search chooses from.

Degrees are factors of the sizes of the topology's groups (all devices, a node, the devices of one kind), combinable
dims included. A configuration of p parts lies on p devices of a group: next to one another, or a node apart, or spread
over the whole group, each time aligned; so identical devices are used alike. The baselines' own are always among them.
Anything else that is legal can still be written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import log10

from .baselines import BASELINES, UNSHARDED
from .graph import Op, OperatorGraph
from .strategy import Configuration
from .topology import Topology


class Space:
    """The enumerated configurations of each op of a graph on a topology."""

    def __init__(self, graph: OperatorGraph, topology: Topology) -> None:
        self.graph, self.topology = graph, topology
        self._groups = _groups(topology)
        self._node = min(sum(d.node == first.node for d in topology.devices) for first in topology.devices)
        self._placed: dict[int, list[tuple[int, ...]]] = {}
        self._alike: dict[tuple[tuple[str, int], ...], list[Configuration]] = {}

    def configurations(self, op_name: str) -> list[Configuration]:
        """All configurations of an op, each once. Raises GraphError for an unknown name."""
        return [*self.enumerated(self.graph.op(op_name)), *self.own(op_name)]

    def own(self, op_name: str) -> list[Configuration]:
        """What the baselines give an op beside what is enumerated."""
        members = self._members[self._signature(self.graph.op(op_name))]
        return list(dict.fromkeys(c for c in self._baselines[op_name] if c not in members))

    @cached_property
    def log10_size(self) -> float:
        """How many strategies there are, as a power of ten."""
        return sum(log10(len(self.configurations(op.name))) for op in self.graph.ops)

    @cached_property
    def _baselines(self) -> dict[str, list[Configuration]]:
        strategies = [BASELINES[name](self.graph, self.topology) for name in UNSHARDED]
        return {op.name: [strategy[op.name] for strategy in strategies] for op in self.graph.ops}

    @cached_property
    def _members(self) -> dict[tuple[tuple[str, int], ...], set[Configuration]]:
        ops = {self._signature(op): op for op in self.graph.ops}
        return {signature: set(self.enumerated(op)) for signature, op in ops.items()}

    @staticmethod
    def _signature(op: Op) -> tuple[tuple[str, int], ...]:
        return tuple((dim.name, dim.size) for dim in op.dims if dim.splittable)

    def enumerated(self, op: Op) -> list[Configuration]:
        """The configurations of an op but for `own`; ops with the same dims share them."""
        signature = self._signature(op)
        if signature not in self._alike:
            self._alike[signature] = [
                Configuration(degrees, devices)
                for count in sorted({n for group in self._groups for n in divisors(len(group))})
                for degrees in factorings(count, signature)
                for devices in self._placements(count)
            ]
        return self._alike[signature]

    def _placements(self, count: int) -> list[tuple[int, ...]]:
        if count not in self._placed:
            self._placed[count] = list(dict.fromkeys(self._place(count)))
        return self._placed[count]

    def _place(self, count: int) -> Iterator[tuple[int, ...]]:
        for group in self._groups:
            if len(group) % count:
                continue
            for stride in {1, self._node, len(group) // count}:
                if len(group) % (stride * count):
                    continue
                for block in range(0, len(group), stride * count):
                    for offset in range(stride):
                        yield tuple(group[block + offset + i * stride] for i in range(count))


def factorings(count: int, dims: tuple[tuple[str, int], ...]) -> Iterator[dict[str, int]]:
    """Every way to split so many parts over the dims."""
    if not dims:
        if count == 1:
            yield {}
        return
    (name, size), *rest = dims
    for degree in divisors(count):
        if degree <= size:
            for others in factorings(count // degree, tuple(rest)):
                yield {name: degree, **others} if degree > 1 else others


def divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _groups(topology: Topology) -> list[tuple[int, ...]]:
    """All devices, those of each node, and those of each kind."""
    everyone = tuple(range(topology.num_devices))
    nodes: dict[int, list[int]] = {}
    kinds: dict[str, list[int]] = {}
    for number, device in enumerate(topology.devices):
        nodes.setdefault(device.node, []).append(number)
        kinds.setdefault(device.kind, []).append(number)
    return list(dict.fromkeys([everyone, *map(tuple, kinds.values()), *map(tuple, nodes.values())]))
