"""What the core wants to know of devices and costs, asked once for each op, its extents and a kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

from .. import _core
from ..costs import Costs, OpTimes, PreparedCosts, Question, unheard
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph
from ..strategy import Strategy
from ..topology import Topology
from .training import Training, check_training

LONGEST = 2**43  # ns of one task: far from overflow in sums
LONGEST_LAUNCH = 2**31

_Numbers = tuple[int, int, int, int, int, int, int, int]
Wanted = tuple[int, Sequence[int], Sequence[int]]  # an op, its degrees, and devices


def check_all(graph: OperatorGraph, topology: Topology, strategy: Strategy, training: Training) -> None:
    """Raise SoapstoneError unless these are what they are called, and belong together."""
    for given, kind in ((graph, OperatorGraph), (topology, Topology), (strategy, Strategy)):
        if not isinstance(given, kind):
            raise SoapstoneError(f"a simulation needs a graph, a topology and a strategy; {shortened(given)} is none")
    check_training(training)
    strategy.check(graph, topology)


@contextmanager
def translated_errors() -> Iterator[None]:
    """What the core refuses, such as times that are too long to add up, as an error of ours."""
    try:
        yield
    except SoapstoneError:
        raise
    except ValueError as error:
        raise SoapstoneError(f"this cannot be simulated: {error}") from None


class KnownTimes:
    """The core's table of times, filled from costs as ops get degrees that were not seen before."""

    def __init__(self, graph: OperatorGraph, topology: Topology, costs: Costs) -> None:
        self.graph, self.costs = graph, costs
        self.asks_for = graph.alike if costs.by_signature else range(len(graph.ops))
        self.native = _core.Times(graph.native, list(self.asks_for))
        names = list(dict.fromkeys(device.kind for device in topology.devices))
        self.names, self.kinds = names, [names.index(device.kind) for device in topology.devices]
        self._asked: dict[tuple[int, tuple[int, ...], int, bool], _Numbers] = {}

    def fill(self, index: int, degrees: Sequence[int], devices: Sequence[int]) -> None:
        """Make sure that the times of an op's parts on these devices are known."""
        for kind in {self.kinds[device] for device in devices}:
            if not self.native.has(index, degrees, kind):
                times = [self._ask(*question, kind) for question in self._questions(index, degrees)]
                self.native.set(self.asks_for[index], degrees, kind, times)

    def fill_all(self, wanted: Iterable[Wanted], progress: Callable[[float], None] = unheard) -> None:
        """The same for many. Costs that prepare first hear all that they will be asked."""
        wanted = list(wanted)
        if isinstance(self.costs, PreparedCosts):
            for kind, questions in self._unknown(wanted).items():
                self.costs.prepare(self.graph, questions, self.names[kind], progress)
            progress = unheard  # all is answered at once now
        for number, (index, degrees, devices) in enumerate(wanted):
            if number % 32 == 0:
                progress(number / len(wanted))
            self.fill(index, degrees, devices)

    def _questions(self, index: int, degrees: Sequence[int]) -> list[Question]:
        index = self.asks_for[index]
        dims = self.graph.ops[index].dims
        combines = any(dim.combinable and degree > 1 for dim, degree in zip(dims, degrees))
        return [(index, tuple(extents), combines) for extents in self.native.extents(index, degrees)]

    def _unknown(self, wanted: list[Wanted]) -> dict[int, list[Question]]:
        """By kind of device, what was not asked before; each question once."""
        found: dict[int, dict[Question, None]] = {}
        for index, degrees, devices in wanted:
            for kind in {self.kinds[device] for device in devices}:
                if not self.native.has(index, degrees, kind):
                    found.setdefault(kind, {}).update(dict.fromkeys(self._questions(index, degrees)))
        return {kind: list(questions) for kind, questions in found.items()}

    def _ask(self, index: int, extents: tuple[int, ...], combines: bool, kind: int) -> _Numbers:
        key = (index, extents, kind, combines)
        if key not in self._asked:
            times = self.costs.times(self.graph, index, extents, self.names[kind], combines)
            name = self.graph.ops[index].name
            if not isinstance(times, OpTimes):
                raise SoapstoneError(f"the costs give op {name!r} {times!r}; OpTimes are needed")
            found: _Numbers = astuple(times)
            if not all(isinstance(ns, int) and 0 <= ns < LONGEST for ns in found[:4]):
                raise SoapstoneError(f"the costs give op {name!r} {found[:4]}; whole nanoseconds below 2^43 are needed")
            if not all(isinstance(ns, int) and 0 <= ns < LONGEST_LAUNCH for ns in found[4:]):
                raise SoapstoneError(
                    f"launching op {name!r} takes {found[4:]}; whole nanoseconds below 2^31 are needed"
                )
            self._asked[key] = found
        return self._asked[key]


def machine_of(topology: Topology, times: KnownTimes, training: Training) -> _core.Machine:
    """The topology with what an optimizer's step takes on each device."""
    updates = [times.costs.update(device.kind, training.optimizer) for device in topology.devices]
    for launch, per_element in updates:
        if type(launch) is not int or not 0 <= launch < LONGEST or not 0 <= per_element < 1e9:
            raise SoapstoneError(f"the costs give an update {launch!r} and {per_element!r} ns; both must be 0 or more")
    return _core.Machine(
        topology.native,
        times.kinds,
        [per_element for _, per_element in updates],
        max(launch for launch, _ in updates),
        training.bucket_bytes_on(topology),
        training.groups_ahead,
    )
