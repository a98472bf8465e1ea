"""What the core wants to know of devices and costs, asked once for each op, its extents and a kind of device."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _core
from ..costs import Costs, OpTimes
from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..topology import Topology


class KnownTimes:
    """The core's table of times, filled from costs as ops get degrees that were not seen before."""

    def __init__(self, graph: OperatorGraph, topology: Topology, costs: Costs) -> None:
        self.graph, self.costs = graph, costs
        self.native = _core.Times(graph.native)
        names = list(dict.fromkeys(device.kind for device in topology.devices))
        self.names, self.kinds = names, [names.index(device.kind) for device in topology.devices]
        self._asked: dict[tuple[int, tuple[int, ...], int, bool], tuple[int, int, int, int]] = {}

    def fill(self, index: int, degrees: Sequence[int], devices: Sequence[int]) -> None:
        """Make sure that the times of an op's parts on these devices are known."""
        for kind in {self.kinds[device] for device in devices}:
            if self.native.has(index, degrees, kind):
                continue
            op = self.graph.ops[index]
            combines = any(dim.combinable and degree > 1 for dim, degree in zip(op.dims, degrees))
            extents = self.native.extents(index, degrees)
            self.native.set(index, degrees, kind, [self._ask(index, tuple(e), kind, combines) for e in extents])

    def _ask(self, index: int, extents: tuple[int, ...], kind: int, combines: bool) -> tuple[int, int, int, int]:
        key = (index, extents, kind, combines)
        if key not in self._asked:
            times: OpTimes = self.costs.times(self.graph, index, extents, self.names[kind], combines)
            found = (times.forward, times.backward, times.finish_forward, times.finish_backward)
            if not all(isinstance(ns, int) and 0 <= ns < 2**53 for ns in found):
                name = self.graph.ops[index].name
                raise SoapstoneError(f"the costs give op {name!r} {found}; whole nanoseconds are needed")
            self._asked[key] = found
        return self._asked[key]


def machine_of(topology: Topology, times: KnownTimes, optimizer: str, bucket_bytes: int) -> _core.Machine:
    """The topology with what an optimizer's step takes on each device. Raises SoapstoneError for a bad bucket size."""
    if type(bucket_bytes) is not int or not 0 <= bucket_bytes < 2**62:
        raise SoapstoneError(f"bucket_bytes={bucket_bytes!r} is not a number of bytes; use 0 for one piece a bucket")
    updates = [times.costs.update(device.kind, optimizer) for device in topology.devices]
    return _core.Machine(
        topology.native,
        times.kinds,
        [per_element for _, per_element in updates],
        max(launch for launch, _ in updates),
        bucket_bytes,
    )
