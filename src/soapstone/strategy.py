"""How every op is split and where its parts run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType

from .errors import StrategyError
from .files import read_json, write_atomically
from .graph import Op, OperatorGraph
from .topology import Topology

FORMAT = 1


@dataclass(frozen=True)
class Configuration:
    """One op's degrees by dim name, and the device of each part in row-major order over the op's dims. Dims that are
    not named have degree 1. Two parts may share a device."""

    degrees: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not isinstance(self.degrees, Mapping):
            raise StrategyError(f"degrees must map dim names to numbers, not be {self.degrees!r:.60}")
        if not isinstance(self.devices, tuple | list):
            raise StrategyError(f"devices must be a tuple of device numbers, not {self.devices!r:.60}")
        for name, degree in self.degrees.items():
            if type(degree) is not int or degree < 1:
                raise StrategyError(f"the degree of {name!r} must be a whole number from 1 up, not {degree!r}")
        kept = {name: degree for name, degree in sorted(self.degrees.items()) if degree > 1}
        object.__setattr__(self, "degrees", MappingProxyType(kept))
        object.__setattr__(self, "devices", tuple(self.devices))
        if self.num_parts != len(self.devices):
            raise StrategyError(
                f"degrees {kept} make {self.num_parts} parts, but {len(self.devices)} devices are named; "
                "name one device a part, in row-major order of the parts"
            )

    def __hash__(self) -> int:
        return hash((tuple(self.degrees.items()), self.devices))

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, int], tuple[int, ...]]]:
        return Configuration, (dict(self.degrees), self.devices)

    @property
    def num_parts(self) -> int:
        return prod(self.degrees.values())

    def degrees_of(self, op: Op) -> list[int]:
        """The degree of each of the op's dims, in order."""
        return [self.degrees.get(dim.name, 1) for dim in op.dims]

    def check(self, op: Op, num_devices: int) -> None:
        """Raise StrategyError unless the op can be split so and the devices exist."""
        where = f"the configuration of op {op.name!r}"
        for name, degree in self.degrees.items():
            dim = op.dim(name)
            if dim is None:
                known = ", ".join(d.name for d in op.dims) or "none"
                raise StrategyError(f"{where} splits {name!r}, which it does not have; its dims are: {known}")
            if not dim.splittable:
                raise StrategyError(f"{where} splits {name!r}, which is needed whole; give it degree 1")
            if degree > dim.size:
                raise StrategyError(f"{where} splits {name!r} of size {dim.size} in {degree}; use at most {dim.size}")
        for device in self.devices:
            if type(device) is not int or not 0 <= device < num_devices:
                raise StrategyError(f"{where} names device {device!r}; the topology has 0 to {num_devices - 1}")


class Strategy(Mapping[str, Configuration]):
    """A configuration for every op of one graph, on the devices of a topology. Raises StrategyError where one is
    missing, unknown or illegal."""

    def __init__(self, graph: OperatorGraph, topology: Topology, configurations: Mapping[str, Configuration]) -> None:
        names = [op.name for op in graph.ops]
        if not isinstance(configurations, Mapping):
            raise StrategyError("a strategy needs a mapping from op names to configurations")
        for name, configuration in configurations.items():
            if not isinstance(configuration, Configuration):
                raise StrategyError(f"op {name!r} needs a Configuration, not {type(configuration).__name__}")
            if name not in graph:
                raise StrategyError(f"the graph has no op {name!r}; its ops are {', '.join(names[:8])}, ...")
        if missing := [name for name in names if name not in configurations]:
            raise StrategyError(f"the strategy has no configuration for {', '.join(missing[:8])}; give every op one")
        for op in graph.ops:
            configurations[op.name].check(op, topology.num_devices)
        self.graph, self.topology = graph, topology
        self._configurations = {name: configurations[name] for name in names}

    def __getitem__(self, name: str) -> Configuration:
        if name not in self._configurations:
            raise StrategyError(f"the strategy has no op {name!r}")
        return self._configurations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configurations)

    def __len__(self) -> int:
        return len(self._configurations)

    def __contains__(self, name: object) -> bool:
        return name in self._configurations

    def __repr__(self) -> str:
        return f"Strategy({len(self)} ops, {self.topology.num_devices} devices)"

    @property
    def graph_fingerprint(self) -> str:
        return self.graph.fingerprint

    @cached_property
    def native(self) -> list[tuple[list[int], list[int]]]:
        return [(self[op.name].degrees_of(op), list(self[op.name].devices)) for op in self.graph.ops]

    def replace(self, changes: Mapping[str, Configuration]) -> Strategy:
        """The same strategy but for some ops."""
        if not isinstance(changes, Mapping):
            raise StrategyError("replace takes a mapping from op names to configurations")
        return Strategy(self.graph, self.topology, {**self._configurations, **changes})

    def check(self, graph: OperatorGraph, topology: Topology) -> None:
        """Raise StrategyError unless the strategy is for this graph and fits this topology."""
        if graph.fingerprint != self.graph_fingerprint:
            raise StrategyError(
                f"the strategy is for graph {self.graph_fingerprint}, not {graph.fingerprint}; make it for this graph, "
                "or capture the model as it was then"
            )
        if topology.num_devices != self.topology.num_devices:
            raise StrategyError(
                f"the strategy is for {self.topology.num_devices} devices, the topology has {topology.num_devices}"
            )

    def save(self, path: str | Path) -> None:
        """Write the strategy as JSON."""
        ops = {name: {"degrees": dict(c.degrees), "devices": list(c.devices)} for name, c in self.items()}
        head = {"format": FORMAT, "kind": "soapstone strategy", "graph": self.graph_fingerprint}
        head["devices"] = self.topology.num_devices
        write_atomically(path, json.dumps({**head, "ops": ops}, indent=1))

    @classmethod
    def load(cls, path: str | Path, graph: OperatorGraph, topology: Topology) -> Strategy:
        """Read a strategy for this graph and topology. Raises StrategyError that says what does not fit."""
        data = read_json(path)
        if not isinstance(data, dict) or data.get("kind") != "soapstone strategy":
            raise StrategyError(f"{path} is not a strategy file; write one with strategy.save(path)")
        if data.get("format") != FORMAT:
            raise StrategyError(f"{path} has strategy format {data.get('format')}, this version reads {FORMAT}")
        if data.get("graph") != graph.fingerprint:
            raise StrategyError(
                f"{path} is a strategy for graph {data.get('graph')}, not {graph.fingerprint}; make it for this graph"
            )
        return cls(graph, topology, {name: _configuration(path, name, row) for name, row in _rows(path, data)})


def _rows(path: str | Path, data: dict[str, object]) -> Iterator[tuple[str, object]]:
    ops = data.get("ops")
    if not isinstance(ops, dict):
        raise StrategyError(f"{path}: 'ops' must be an object with a configuration for each op")
    yield from ops.items()


def _configuration(path: str | Path, name: str, row: object) -> Configuration:
    if (
        not isinstance(row, dict)
        or not isinstance(row.get("degrees"), dict)
        or not isinstance(row.get("devices"), list)
    ):
        raise StrategyError(f"{path}: op {name!r} must have 'degrees' (an object) and 'devices' (a list)")
    return Configuration(row["degrees"], tuple(row["devices"]))
