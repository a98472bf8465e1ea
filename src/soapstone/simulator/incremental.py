"""Predict change after change of a strategy, as a search does.

The task graph is kept and only what a change touches is made anew; times are played by the engine that is fastest
for the case; with a limit, a proposal is dropped as soon as a lower bound of its makespan passes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import _core
from ..errors import SoapstoneError, StrategyError
from ..graph import OperatorGraph
from ..strategy import Configuration, Strategy
from ..topology import Topology
from .memory import bound_of, states_of, temporaries_of, workspaces_of
from .simulation import Simulation, simulate
from .times import KnownTimes, check_all, machine_of, translated_errors
from .training import Training

ENGINES = tuple(method.name for method in _core.Method)
FASTEST = "resume"  # where nothing comes before a change it is `full`; `delta` was slower wherever we measured


class Simulator:
    """The makespan of a strategy and of changes to it, with as many microbatches. Without `loss_may_separate` no use is
    made of forward ending before backward begins, which takes longer and finds the same. Raises what `simulate`
    raises."""

    def __init__(
        self,
        graph: OperatorGraph,
        topology: Topology,
        strategy: Strategy,
        *,
        training: Training = Training(),
        loss_may_separate: bool = True,
    ) -> None:
        check_all(graph, topology, strategy, training)
        self.graph, self.topology, self.strategy, self.training = graph, topology, strategy, training
        self._times = KnownTimes(strategy.played, topology, training.costs)
        machine = machine_of(topology, self._times, training)
        self.native = _core.Simulator(
            strategy.played.native,
            machine,
            self._times.native,
            loss_may_separate=loss_may_separate,
            microbatches=strategy.microbatches,
        )
        self._times.fill_all((i, degrees, devices) for i, (degrees, devices, *_) in enumerate(strategy.native))
        with translated_errors():
            self.native.begin(strategy.native)
        self._proposed: dict[str, Configuration] = {}

    @property
    def makespan_ns(self) -> int:
        """Of the strategy, without what is proposed."""
        return self.native.makespan

    @property
    def memory_bound(self) -> np.ndarray:
        """Bytes by device that no order of the tasks can pass, of what is proposed, else of the strategy."""
        return bound_of(self.native, self.topology, self.training.optimizer)

    @property
    def peak_memory(self) -> np.ndarray:
        """Bytes by device along the timeline, of what is proposed, else of the strategy."""
        optimizer = self.training.optimizer
        held = self.native.peak(states_of(optimizer), temporaries_of(optimizer))
        peak: np.ndarray = held + workspaces_of(self.topology)
        return peak

    @property
    def fits(self) -> bool:
        """Whether no device holds more than its memory."""
        return all(held <= device.memory for held, device in zip(self.peak_memory, self.topology.devices))

    def propose(
        self, changes: Mapping[str, Configuration], *, limit: int | None = None, engine: str = FASTEST
    ) -> int | None:
        """The makespan in ns with these ops configured so, until `accept` or `reject`. None where it would pass the
        limit (ns): then it is rejected already. Raises StrategyError for what no strategy may have."""
        if engine not in ENGINES:
            raise SoapstoneError(f"there is no engine {engine!r}; use one of {', '.join(ENGINES)}")
        if limit is not None and (type(limit) is not int or not 0 <= limit < 2**62):
            raise SoapstoneError(f"limit={limit!r} is not a number of ns; give a whole number, or None for no limit")
        if not isinstance(changes, Mapping):
            raise StrategyError("propose takes a mapping from op names to configurations")
        native = []
        for name, configuration in changes.items():
            index = self.graph.index(name)
            op = self.strategy.played.ops[index]
            if not isinstance(configuration, Configuration):
                raise StrategyError(f"op {name!r} needs a Configuration, not {type(configuration).__name__}")
            configuration.check(op, self.topology.num_devices)
            wanted = configuration.native(op)
            self._times.fill(index, *wanted[:2])
            native.append((index, wanted))
        if self.native.is_open:
            raise SoapstoneError("the last proposal is still open; call accept() or reject() first")
        with translated_errors():
            makespan = self.native.propose(native, limit, _core.Method[engine])
        if makespan is not None:
            self._proposed = dict(changes)
        return makespan

    def accept(self) -> None:
        """Make the proposal the strategy."""
        self._end("accept")
        self.native.accept()
        self.strategy = self.strategy.replace(self._proposed)

    def reject(self) -> None:
        """Forget the proposal."""
        self._end("reject")
        self.native.reject()

    def _end(self, what: str) -> None:
        if not self.native.is_open:
            raise SoapstoneError(f"there is no proposal to {what}; propose one first")

    def result(self) -> Simulation:
        """The strategy's whole simulation."""
        return simulate(self.graph, self.topology, self.strategy, training=self.training)
