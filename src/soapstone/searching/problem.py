"""What is searched: a graph, a topology and costs, as the core wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from .. import _core
from ..baselines import BASELINES, UNSHARDED
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph, microbatch
from ..simulator import (
    FASTEST,
    KnownTimes,
    Training,
    check_training,
    least_recomputed,
    machine_of,
    simulate,
    states_of,
    temporaries_of,
    translated_errors,
    workspace_of,
)
from ..space import Space
from ..strategy import SHARDS, Configuration, Native, Strategy
from ..topology import Topology
from .options import Options


def check_problem(graph: OperatorGraph, topology: Topology, training: Training) -> None:
    """Raise SoapstoneError unless these can be searched."""
    for given, kind in ((graph, OperatorGraph), (topology, Topology)):
        if not isinstance(given, kind):
            raise SoapstoneError(f"a search needs a graph and a topology; {shortened(given)} is neither")
    check_training(training)


class Problem:
    """The space with the times of everything in it, for so many microbatches: `graph` is that of one of them, `whole`
    the model's. `progress` hears what share of the times is known. Raises SoapstoneError for what no simulation
    takes."""

    def __init__(
        self,
        graph: OperatorGraph,
        topology: Topology,
        *,
        training: Training = Training(),
        memory_limit: bool = True,
        sharding: bool = True,
        recompute: bool = True,
        microbatches: int = 1,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        check_problem(graph, topology, training)
        self.whole, self.topology, self.training, self.microbatches = graph, topology, training, microbatches
        self.graph = graph = microbatch(graph, microbatches)
        self.times = KnownTimes(graph, topology, training.costs)
        self.machine = machine_of(topology, self.times, training)
        self.num_states = states_of(training.optimizer)
        self.num_temporaries = temporaries_of(training.optimizer)
        free = [max(0, device.memory - workspace_of(device)) for device in topology.devices]
        self.memory = free if memory_limit else []
        self.recompute = recompute
        self.space = Space(graph, topology)
        self.options = Options(self.space, self.times, progress, sharding=sharding)

    def chain(self, seed: str, engine: str = FASTEST) -> _core.Chain:
        bits = int.from_bytes(sha256(seed.encode()).digest()[:8])
        return _core.Chain(
            self.graph.native,
            self.machine,
            self.times.native,
            self.options.tables,
            self.memory,
            self.num_states,
            bits,
            self.num_temporaries,
            _core.Method[engine],
            self.microbatches,
        )

    def ask(self, strategy: Sequence[Native]) -> None:
        """Make sure that the times of a strategy are known."""
        self.times.fill_all((i, degrees, devices) for i, (degrees, devices, *_) in enumerate(strategy))

    def on_one_device(self) -> list[list[Native]]:
        """For each kind of device, the strategy that puts all on the first of it."""
        kinds = self.times.kinds
        return [
            [([1] * len(op.dims), [kinds.index(kind)], 0, False, 0) for op in self.graph.ops]
            for kind in sorted(set(kinds))
        ]

    def on_one_node(self) -> list[list[Native]]:
        """The baselines on the devices of the first node; none where there is only one node."""
        first = [i for i, device in enumerate(self.topology.devices) if device.node == self.topology.devices[0].node]
        if len(first) == self.topology.num_devices:
            return []
        as_many = Topology.parse(f"cpu:1x{len(first)}")  # baselines ask no more of a topology
        found = [baseline(self.graph, as_many).native for baseline in (BASELINES[name] for name in UNSHARDED)]
        return [[(row[0], [first[i] for i in row[1]], *row[2:]) for row in native] for native in found]

    def played(self, strategy: Sequence[Native]) -> _core.Simulator:
        """A strategy, simulated."""
        self.ask(strategy)
        simulator = _core.Simulator(self.graph.native, self.machine, self.times.native, microbatches=self.microbatches)
        with translated_errors():
            simulator.begin(list(strategy))
        return simulator

    def cost(self, native: Sequence[Native]) -> tuple[bool, int]:
        """Whether a strategy does not fit, then its makespan in ns."""
        simulator = self.played(native)
        if not self.memory:
            return False, simulator.makespan
        peak = simulator.peak(self.num_states, self.num_temporaries)
        return any(held > memory for held, memory in zip(peak, self.memory)), simulator.makespan

    def recomputed(self, native: Sequence[Native]) -> list[Native]:
        """The same with as few ops recomputed as fit; itself where that does not help."""
        played = simulate(self.whole, self.topology, self.strategy(native), training=self.training)
        return least_recomputed(played).strategy.native

    def strategy(self, native: Sequence[Native]) -> Strategy:
        shards = [shard for _, _, shard, *_ in native]
        for sharers in self.graph.sharers:  # the core has a parameter as its first reader does
            for index in sharers:
                shards[index] = shards[sharers[0]]
        configurations = {}
        for op, (degrees, devices, _, again, in_flight), shard in zip(self.graph.ops, native, shards):
            names = {dim.name: degree for dim, degree in zip(op.dims, degrees)}
            configurations[op.name] = Configuration(names, tuple(devices), SHARDS[shard], again, in_flight or None)
        return Strategy(self.whole, self.topology, configurations, self.microbatches)
