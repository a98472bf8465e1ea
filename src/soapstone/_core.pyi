"""The compiled core: geometry, topology, task graph, timeline."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Timeline:
    @property
    def ready(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def start(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def end(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def hold_start(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def order(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', writable=False)]: ...

    @property
    def makespan(self) -> int: ...

def play(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], latency: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], hold_begin: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], hold_resource: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], hold_duration: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], predecessor_begin: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], predecessors: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], num_resources: int) -> Timeline:
    """
    Play tasks, rows in increasing key, through Algorithm 1; raises ValueError on bad rows or a cycle.
    """

class Link:
    def __init__(self, source: int, target: int, bandwidth: float, latency: int, overhead: int, duplex: bool, overlap: bool) -> None: ...

class Topology:
    def __init__(self, num_devices: int, num_switches: int, node_of_device: Sequence[int], links: Sequence[Link]) -> None: ...

    @property
    def num_devices(self) -> int: ...

    @property
    def num_resources(self) -> int: ...

    def route(self, source: int, target: int) -> list[int]: ...

    def transfer(self, source: int, target: int, bytes: int) -> tuple[list[tuple[int, int]], int]:
        """Return ([(resource, ns), ...], latency in ns) of one message."""

    def all_reduce(self, devices: Sequence[int], bytes: int) -> tuple[list[tuple[int, int]], int]:
        """
        Return ([(resource, ns), ...], latency in ns) of an all-reduce: the better of ring and tree.
        """
