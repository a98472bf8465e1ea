"""A configuration for every op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import GraphError, StrategyError, meant
from ..files import shortened, write_atomically
from ..graph import OperatorGraph, microbatch, reduction
from ..topology import Topology
from .configuration import Configuration, Native
from .file import data_of, read, text_of
from .measured import Measured
from .patterns import assigned, folded

MOST_LINES = 40


class Strategy(Mapping[str, Configuration]):
    """A configuration for every op of one graph, on the devices of a topology; the batch is cut into `microbatches`,
    which pass through the ops one after the other. Raises StrategyError where a configuration is missing, unknown or
    illegal, or the batch cannot be cut so."""

    def __init__(
        self,
        graph: OperatorGraph,
        topology: Topology,
        configurations: Mapping[str, Configuration],
        microbatches: int = 1,
    ) -> None:
        names = [op.name for op in graph.ops]
        if not isinstance(configurations, Mapping):
            raise StrategyError("a strategy needs a mapping from op names to configurations")
        for name, configuration in configurations.items():
            if not isinstance(configuration, Configuration):
                raise StrategyError(f"op {name!r} needs a Configuration, not {type(configuration).__name__}")
            if name not in graph:
                remedy = meant(name, names, f"its ops are {', '.join(names[:8])}, ...")
                raise StrategyError(f"the graph has no op {name!r}; {remedy}")
        if missing := [name for name in names if name not in configurations]:
            raise StrategyError(f"the strategy has no configuration for {', '.join(missing[:8])}; give every op one")
        if type(microbatches) is not int or microbatches < 1:
            raise StrategyError(f"microbatches must be a number from 1 up, not {shortened(microbatches)}")
        self.graph, self.topology, self.microbatches = graph, topology, microbatches
        for op in self.played.ops:
            configurations[op.name].check(op, topology.num_devices)
        self._configurations = {name: configurations[name] for name in names}
        self._settle_recompute()
        self._settle_shards()
        self.notes: tuple[str, ...] = ()  # what a file was made for that is not here
        self.predicted: float | None = None  # seconds of a step, where `tune` found them or a file says so
        self.measured: Measured | None = None

    def __getitem__(self, name: str) -> Configuration:
        if name not in self._configurations:
            remedy = meant(name, self._configurations, f"it has {', '.join(list(self._configurations)[:8])}, ...")
            raise StrategyError(f"the strategy has no op {name!r}; {remedy}")
        return self._configurations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configurations)

    def __len__(self) -> int:
        return len(self._configurations)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strategy) and other.microbatches != self.microbatches:
            return False
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, name: object) -> bool:
        return name in self._configurations

    def __repr__(self) -> str:
        cut = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"Strategy({len(self)} ops, {self.topology.num_devices} devices{cut})"

    def __str__(self) -> str:
        """A line for ops that are configured alike and have like names."""
        default, rows = folded(self.graph, self)
        takes = Counter(assigned(rows, default, self.graph).values())
        lines = [(name, takes[name], configuration) for name, configuration in rows.items()]
        if default is not None:
            lines.append(("all others", takes[None], default))
        return _tabulated(lines)

    @property
    def devices(self) -> list[int]:
        """The devices that have anything to do."""
        return sorted({device for configuration in self.values() for device in configuration.devices})

    @property
    def graph_fingerprint(self) -> str:
        return self.graph.fingerprint

    @cached_property
    def played(self) -> OperatorGraph:
        """The graph of one microbatch."""
        try:
            return microbatch(self.graph, self.microbatches)
        except GraphError as error:
            raise StrategyError(str(error)) from None

    @cached_property
    def joins(self) -> str:
        """How losses of microbatches make the loss of a batch: "mean" or "sum"."""
        return reduction(self.graph) if self.microbatches > 1 else "mean"

    @cached_property
    def native(self) -> list[Native]:
        return [self[op.name].native(op) for op in self.graph.ops]

    def replace(self, changes: Mapping[str, Configuration]) -> Strategy:
        """The same strategy but for some ops."""
        if not isinstance(changes, Mapping):
            raise StrategyError("replace takes a mapping from op names to configurations")
        return Strategy(self.graph, self.topology, {**self._configurations, **changes}, self.microbatches)

    def _settle_recompute(self) -> None:
        """Ops without a backward are not recomputed."""
        for op in self.graph.ops:
            if not op.backward and self[op.name].recompute:
                self._configurations[op.name] = replace(self[op.name], recompute=False)

    def _settle_shards(self) -> None:
        """Ops that train no parameter shard none. Raise StrategyError where two that share one do not agree."""
        trains = self.graph.trains
        for op, parameters in zip(self.graph.ops, trains):
            if not parameters and self[op.name].shard != "none":
                self._configurations[op.name] = replace(self[op.name], shard="none")
        first: dict[int, str] = {}
        for op, parameters in zip(self.graph.ops, trains):
            for parameter in parameters:
                other = first.setdefault(parameter, op.name)
                if self[op.name].shard != self[other].shard:
                    name = self.graph.tensors[parameter].name
                    raise StrategyError(
                        f"ops {other!r} and {op.name!r} share {name!r}, but shard it differently: "
                        f"{self[other].shard} and {self[op.name].shard}; give both the same"
                    )

    def check(self, graph: OperatorGraph, topology: Topology) -> None:
        """Raise StrategyError unless the strategy is for this graph and fits this topology."""
        if graph is not self.graph and graph.fingerprint != self.graph_fingerprint:
            raise StrategyError(
                f"the strategy is for graph {self.graph_fingerprint}, not {graph.fingerprint}; make it for this graph, "
                "or capture the model as it was then"
            )
        if topology.num_devices != self.topology.num_devices:
            raise StrategyError(
                f"the strategy is for {self.topology.num_devices} devices, the topology has {topology.num_devices}"
            )

    def to_data(self, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What `save` writes."""
        return data_of(self.graph, self.topology, self, self.microbatches, arguments, (self.predicted, self.measured))

    def save(self, path: str | Path, arguments: Mapping[str, Any] | None = None) -> None:
        """Write the strategy as JSON that a person can read and change. `arguments` are what a command was asked for;
        others then know what it was made for."""
        write_atomically(path, text_of(self.to_data(arguments)))

    @classmethod
    def load(cls, path: str | Path, graph: OperatorGraph, topology: Topology, *, fit: bool = False) -> Strategy:
        """Read a strategy for this graph and topology. Where it was made for others and still applies, `notes` says
        what differs; where it does not apply, StrategyError does. With `fit` it also applies where some of its rows
        name ops that the graph does not have."""
        configurations, microbatches, notes, record = read(path, graph, topology, fit=fit)
        try:
            strategy = cls(graph, topology, configurations, microbatches)
        except StrategyError as error:
            raise StrategyError(f"{path} does not apply: {error}") from None
        strategy.notes, (strategy.predicted, strategy.measured) = notes, record
        return strategy


def _tabulated(rows: list[tuple[str, int, Configuration]]) -> str:
    """Names, how many ops have them, degrees and devices, in columns; not more rows than a person reads."""
    shown = rows if len(rows) < MOST_LINES else rows[: MOST_LINES - 2]
    cells = [("op", "ops", "split", "devices")]
    for name, count, configuration in shown:
        split, _, devices = str(configuration).rpartition(" on ")
        cells.append((name, str(count), split, devices))
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:{widths[2]}}  {d}" for a, b, c, d in cells]
    left = sum(count for _, count, _ in rows[len(shown) :])
    return "\n".join([*lines, f"... and {left:,} more"] if left else lines)
