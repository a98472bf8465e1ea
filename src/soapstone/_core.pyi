"""The compiled core: geometry, machine, tasks, engines, search."""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Source(enum.Enum):
    """Where a tensor comes from."""

    op = 0

    input = 1

    parameter = 2

def refine(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """
    The common refinement of two factorings of one axis, without ones; None where there is none.
    """

def project(box: Sequence[tuple[int, int]], coarse: Sequence[Sequence[int]], fine: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """The boxes, over the dims of a refinement, of a box over coarser dims."""

class Graph:
    def __init__(self) -> None: ...

    def add_tensor(self, source: Source, item_size: int, read_size: int, grad: bool, axes: Sequence[Sequence[int]]) -> int:
        """Add a tensor and return its index."""

    def add_op(self, values: Sequence[Sequence[Sequence[int]]], steps: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[bool], Sequence[Sequence[Sequence[tuple[int, int, tuple[int, int, int], tuple[int, int, int]]]]], Sequence[Sequence[Sequence[int]]]]], dims: Sequence[tuple[int, int, int, bool, bool]], inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]], head: int, combine: tuple[bool, bool, Sequence[int], int, int], backward: bool, item_sizes: Sequence[int], saved: Sequence[int], extra: int, casts: Sequence[tuple[int, int]]) -> int: ...

    def factoring(self, tensor: int) -> list[list[int]]:
        """
        The common refinement of a tensor's writer and readers: sizes, axis by axis.
        """

    def regions(self, op: int, degrees: Sequence[int], part: int) -> tuple[list[list[tuple[int, int]]], list[list[list[tuple[int, int]]]], list[list[tuple[int, int]]]]:
        """
        Boxes of one part: (each step's dims, what each step needs of each input, each value).
        """

    def regions_at(self, op: int, box: Sequence[tuple[int, int]]) -> tuple[list[list[tuple[int, int]]], list[list[list[tuple[int, int]]]], list[list[tuple[int, int]]]]:
        """The same for any box over the op's dims."""

class Curve:
    """How long bytes take, as measured at a few sizes."""

    def __init__(self, points: Sequence[tuple[int, int]]) -> None:
        """Of (bytes, ns)."""

    def time(self, bytes: int) -> int: ...

class Link:
    def __init__(self, source: int, target: int, bandwidth: float, latency: int, overhead: int, duplex: bool, exposed: float, summing: float, sharp: float, times: Curve, buses: Sequence[int]) -> None: ...

class Host:
    """
    The thread that issues a device's work, and what it pays for messages and sums and once an iteration; ns.
    """

    def __init__(self, send: int, receive: int, sum: int, iteration: int, copying: float, is_ahead: bool) -> None: ...

class MeasuredSum:
    """The times of an all-reduce among so many devices of so many nodes."""

    def __init__(self, members: int, nodes: int, times: Curve, exposed: float | None = None) -> None: ...

class Topology:
    def __init__(self, num_devices: int, num_switches: int, node_of_device: Sequence[int], links: Sequence[Link], hosts: Sequence[Host], sums: Sequence[MeasuredSum], buses: Sequence[float]) -> None: ...

    @property
    def num_devices(self) -> int: ...

    @property
    def num_resources(self) -> int: ...

    def route(self, source: int, target: int) -> list[int]: ...

    def transfer(self, source: int, target: int, bytes: int) -> tuple[list[tuple[int, int]], int]:
        """Return ([(resource, ns), ...], latency in ns) of one message."""

    def all_reduce(self, devices: Sequence[int], bytes: int) -> tuple[list[tuple[int, int]], int]:
        """
        Return ([(resource, ns), ...], latency in ns) of an all-reduce in the best of its patterns.
        """

    def reduce_scatter(self, devices: Sequence[int], bytes: int) -> tuple[list[tuple[int, int]], int]:
        """
        The same of a reduce-scatter; `bytes` are those that each device gives.
        """

    def all_gather(self, devices: Sequence[int], bytes: int) -> tuple[list[tuple[int, int]], int]:
        """
        The same of an all-gather; `bytes` are those that each device ends with.
        """

class Times:
    def __init__(self, graph: Graph, alike: Sequence[int]) -> None:
        """`alike` names, by op, the op that it shares its times with."""

    def extents(self, op: int, degrees: Sequence[int]) -> list[list[int]]:
        """The distinct extents of an op's parts."""

    def has(self, op: int, degrees: Sequence[int], kind: int) -> bool: ...

    def set(self, op: int, degrees: Sequence[int], kind: int, times: Sequence[tuple[int, int, int, int, int, int, int, int]]) -> None:
        """
        For each of the distinct extents, nanoseconds (forward, backward, finish forward, finish backward), and of a host that launches each.
        """

class Machine:
    def __init__(self, topology: Topology, kinds: Sequence[int], update_ns_per_element: Sequence[float], update_overhead: int, bucket_bytes: int, groups_ahead: int) -> None: ...

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

class Kind(enum.IntEnum):
    """What a task does; columns hold the numbers."""

    forward = 0

    backward = 1

    combine = 2

    transfer = 3

    sync = 4

    update = 5

    gather = 6

class Task:
    @property
    def key(self) -> int: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def op(self) -> int: ...

    @property
    def part(self) -> int: ...

    @property
    def backward(self) -> bool: ...

    @property
    def finish(self) -> bool: ...

    @property
    def is_half(self) -> bool: ...

    @property
    def bytes(self) -> int: ...

    @property
    def latency(self) -> int: ...

    @property
    def microbatch(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def flow(self) -> int: ...

    @property
    def devices(self) -> list[int]: ...

    @property
    def pieces(self) -> list[tuple[int, int]]: ...

    @property
    def after(self) -> list[int]: ...

    @property
    def holds(self) -> list[tuple[int, int]]: ...

class Flow:
    @property
    def tensor(self) -> int: ...

    @property
    def part(self) -> int: ...

    @property
    def device(self) -> int: ...

    @property
    def source(self) -> int: ...

    @property
    def forward(self) -> int: ...

    @property
    def backward(self) -> int: ...

    @property
    def readers(self) -> list[tuple[int, int]]: ...

    @property
    def hull(self) -> list[tuple[int, int]]: ...

class TaskGraph:
    def __init__(self, graph: Graph, machine: Machine, times: Times, strategy: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], microbatches: int = 1) -> None: ...

    def __len__(self) -> int: ...

    def play(self) -> Timeline: ...

    def task(self, row: int) -> Task: ...

    @property
    def num_flows(self) -> int: ...

    def flow(self, index: int) -> Flow: ...

    def fetch(self, op: int, part: int, input: int) -> tuple[list[tuple[int, int]], list[tuple[int, list[list[tuple[int, int]]]]]]:
        """
        What a part reads of an input: (hull, [(flow, boxes), ...]), in the tensor's factoring.
        """

    def pieces(self, tensor: int) -> list[tuple[list[int], list[list[tuple[int, int]]]]]:
        """A parameter's pieces: [(holders, boxes), ...]."""

    def flow_columns(self) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """
        (tensor, part, device, source, forward, backward) of each flow, where its readers begin, and all readers: (op, part).
        """

    def holdings(self, timeline: Timeline, num_temporaries: int) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """
        (device, content, op, since, until, bytes) of all that is held along a timeline, but for parameters and states.
        """

    def memory(self) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """
        Bytes by device: (parameters, gathered, gradients, updated, saved, made, buckets, transient).
        """

    def memory_bound(self, num_states: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Bytes by device that no order can pass, with so many numbers kept for each element.
        """

    def groups(self, op: int) -> list[list[int]]:
        """
        An op's combine groups, each the parts that combine; empty where none does.
        """

    @property
    def keys(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    @property
    def kinds(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def ops(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def microbatches(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def parts(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def latencies(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def bytes(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def hold_rows(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def hold_resources(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def hold_durations(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def hold_launches(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

class Method(enum.Enum):
    """How a task graph is played; all find the same times."""

    full = 0

    resume = 1

    delta = 2

class Simulator:
    def __init__(self, graph: Graph, machine: Machine, times: Times, *, loss_may_separate: bool = True, microbatches: int = 1) -> None: ...

    def begin(self, strategy: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]) -> int:
        """Play the first strategy and return its makespan."""

    def propose(self, changes: Sequence[tuple[int, tuple[Sequence[int], Sequence[int], int, bool, int]]], limit: int | None, method: Method) -> int | None:
        """
        The makespan in ns of a change, or None where it passes the limit and is rejected already.
        """

    def accept(self) -> None: ...

    def reject(self) -> None: ...

    def look_closely(self) -> None:
        """Find every chance to rejoin the old play, however dear: for tests."""

    def timeline(self) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """(key, ready, end) of every task, by (ready, key)."""

    def memory(self) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """
        Bytes by device: (parameters, gathered, gradients, updated, saved, made, buckets, transient).
        """

    def memory_bound(self, num_states: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Bytes by device that no order can pass, with so many numbers kept for each element.
        """

    def peak(self, num_states: int, num_temporaries: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """The most bytes by device, along the last play."""

    @property
    def is_open(self) -> bool: ...

    @property
    def makespan(self) -> int: ...

    @property
    def bound(self) -> int: ...

    @property
    def num_served(self) -> int: ...

    @property
    def num_tasks(self) -> int: ...

    @property
    def seconds(self) -> list[float]:
        """
        Of all proposals, by stage: ops' blocks, flows and syncs, bounds, links, play, undo, accept, memory.
        """

    @property
    def num_unplayed(self) -> int: ...

    @property
    def num_cut_short(self) -> int: ...

class Chain:
    def __init__(self, graph: Graph, machine: Machine, times: Times, tables: Sequence[Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]], memory: Sequence[int], num_states: int, seed: int, num_temporaries: int = 0, engine: Method = Method.resume, microbatches: int = 1) -> None:
        """
        Moves choose from tables of configurations; `memory` is bytes by device, empty for no limit.
        """

    def go(self, strategy: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]) -> None: ...

    def walk(self, moves: Sequence[tuple[Sequence[int], int, Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], bool, Sequence[int], bool]], first: float, last: float, relative: bool, ends: tuple[int, float, int, float]) -> None:
        """
        Metropolis from one temperature to another. Moves: (ops, table, configurations of their own, whether on any device, the ops whose shard may change, whether ops may be recomputed); ends: (proposals, seconds, patience in proposals, in seconds).
        """

    def descend(self, moves: Sequence[tuple[Sequence[int], int, Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], bool, Sequence[int], bool]], ends: tuple[int, float, int, float], share: float) -> bool:
        """
        Take improvements until this share of all options was tried in vain in a row; whether it came to that.
        """

    def look(self, moves: Sequence[tuple[Sequence[int], int, Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], bool, Sequence[int], bool]], ends: tuple[int, float, int, float]) -> bool | None:
        """Whether nothing improves the strategy; None where it ends before."""

    def stop(self) -> None:
        """End what runs on another thread."""

    @property
    def is_stopped(self) -> bool: ...

    @property
    def seconds(self) -> float:
        """Since the chain was made."""

    @property
    def num_proposals(self) -> int: ...

    @property
    def num_neighbours(self) -> int: ...

    @property
    def makespan(self) -> int: ...

    @property
    def overflow(self) -> int:
        """How far the strategy is from fitting: 0 where it does."""

    @property
    def best_makespan(self) -> int: ...

    @property
    def best_overflow(self) -> int: ...

    @property
    def best(self) -> list[tuple[list[int], list[int], int, bool, int]]: ...

    @property
    def strategy(self) -> list[tuple[list[int], list[int], int, bool, int]]: ...

    @property
    def stages(self) -> list[float]: ...

    @property
    def history(self) -> list[tuple[int, float, int]]:
        """(proposals, seconds, makespan) at each improvement."""

class Additive:
    def __init__(self, graph: Graph, machine: Machine, times: Times) -> None: ...

    def op(self, op: int, options: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """Nanoseconds of an op for each option: (compute, sync)."""

    def edge(self, tensor: int, reader: int, made: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], read: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Nanoseconds of what a tensor's reader takes from its maker, row by row for each of the maker's options.
        """

class Exhaustive:
    def __init__(self, graph: Graph, machine: Machine, times: Times, options: Sequence[Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]]]) -> None: ...

    def run(self, first: Sequence[tuple[Sequence[int], Sequence[int], int, bool, int]], num_threads: int, seconds: float) -> bool:
        """Whether the whole space was gone through."""

    def stop(self) -> None: ...

    def bound(self, choice: Sequence[int]) -> int:
        """Of the strategy that an option of each op makes."""

    @property
    def makespan(self) -> int: ...

    @property
    def root_bound(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_simulated(self) -> int: ...

    @property
    def share(self) -> float: ...

    @property
    def best(self) -> list[tuple[list[int], list[int], int, bool, int]]: ...
