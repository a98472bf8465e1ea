"""Turns measured numbers into a topology.

Two ranks of a node have a link. A rank reaches other nodes through a link to its node's adapter. All ranks of the node
share the adapter's link to the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...topology import Bus, Device, Link, Sum, Topology
from ..transports import Pair
from .meter import LARGE, MESSAGES, MIB, SMALL, SUMS
from .names import all_reduce, message, one_way_out, out_and_in, overhead
from .passes import Numbers
from .seats import Seats
from .together import NETWORK, NODE, PORT, Selection

DUPLEX = 1.4  # if both ways at once are this much faster than one way, the directions do not share bandwidth
CONGESTED = 0.9  # if all nodes at once reach less than this part of their adapters' bandwidth, the network is the limit


@dataclass(frozen=True)
class Calibration:
    """A measured topology, the seconds of an all-reduce of each size among all ranks, and the names of the numbers that
    still varied."""

    topology: Topology
    all_reduce: dict[int, float] = field(default_factory=dict)
    exposed: float = 0.0  # the share of an all-reduce that compute beside it does not hide
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """All numbers, with the selection of pairs, nodes and groups that they were measured on."""

    selection: Selection
    numbers: Numbers
    on_cpu: bool

    @property
    def seats(self) -> Seats:
        return self.selection.seats


def assemble(found: Measured) -> Calibration:
    if len(found.seats.devices) == 1:
        return Calibration(Topology(found.seats.devices, ()))
    numbers = found.numbers
    devices = _devices(found)
    exposed = round(numbers["exposed"], 2)
    inside, buses = _on_buses(devices, [_inside(found, devices, pair) for pair in found.seats.pairs_inside()], found)
    across, network = _across(found, devices) if len(found.seats.nodes) > 1 else ([], ())
    links = [replace(link, exposed=exposed) for link in (*inside, *across)]
    everyone = {size: numbers[all_reduce(_everyone(found), size)] for size in SUMS}
    topology = Topology(devices, tuple(links), _sums(found), (*buses, *network))
    return Calibration(topology, everyone, exposed, tuple(numbers.unsure))


def _devices(found: Measured) -> tuple[Device, ...]:
    """The devices with the thread times of messages, sums and iterations."""
    thread, total, iteration = (_ns(found.numbers[name]) for name in ("thread", "sum", "iteration"))
    return tuple(
        replace(
            device,
            send=thread // 2,
            receive=thread // 2,
            sum=total,
            iteration=iteration,
            copying=round(found.numbers["copying"]),
        )
        for device in found.seats.devices
    )


def _inside(found: Measured, devices: tuple[Device, ...], pair: Pair) -> Link:
    a, b = pair
    return _link(found, devices[a].name, devices[b].name, found.selection.pairs[pair])


def _across(found: Measured, devices: tuple[Device, ...]) -> tuple[list[Link], tuple[Bus, ...]]:
    """The links between nodes: of each rank to its node's adapter, with half of a message's latency, and of each
    adapter to the network. Also a bus for the network, if it is slower than the adapters together."""
    links = []
    for rank, device in enumerate(devices):
        link = _link(found, device.name, _adapter(device.node), _typical_pair(found, rank))
        links.append(replace(link, latency=link.latency // 2))
    alone = max(link.bandwidth for link in links)
    adapters = [_adapter_link(found, node, alone) for node in range(len(found.seats.nodes))]
    reached = found.numbers[NETWORK] if len(adapters) > 2 else float("inf")
    if reached >= CONGESTED * sum(link.bandwidth * (2 if link.duplex else 1) for link in adapters):
        return [*links, *adapters], ()
    return [*links, *(replace(link, buses=("network",)) for link in adapters)], (Bus("network", float(round(reached))),)


def _adapter_link(found: Measured, node: int, alone: float) -> Link:
    """An adapter's link, with the bandwidth that all ranks of the node reach together, but at least that of a message
    that is sent alone."""
    one_way, both = (found.numbers[name(found.selection.nodes[node])] for name in (one_way_out, out_and_in))
    duplex = both > DUPLEX * one_way
    rate = max(one_way, both / 2) if duplex else max(one_way, both)
    return Link(_adapter(node), "network", float(round(max(rate, alone))), duplex=duplex)


def _typical_pair(found: Measured, rank: int) -> Pair:
    """The pair whose numbers stand for a rank's messages to other nodes. If pairs differ it is the fastest, which is
    limited least by other ranks."""
    pairs = {found.selection.pairs[pair] for pair in found.seats.pairs_across() if rank in pair}
    return min(sorted(pairs), key=lambda pair: found.numbers[message(pair[0], pair[1], LARGE)])


def _link(found: Measured, source: str, target: str, pair: Pair) -> Link:
    numbers = found.numbers
    one_way = {size: numbers[message(*pair, size)] for size in MESSAGES}
    each = min(numbers[overhead(*pair)], one_way[SMALL])
    latency = one_way[SMALL] - each
    if found.on_cpu:  # a message takes longer in a program, where threads stop and start
        latency = max(latency, numbers["wall"] - max(each, numbers["thread"] / 2))
    beyond = {size: max(seconds - one_way[SMALL], 0.0) for size, seconds in one_way.items()}
    everyone = _everyone(found)
    large, small = (numbers[all_reduce(everyone, size)] for size in (SUMS[-1], MIB))
    per_byte = max(large - small, 1e-9) / (SUMS[-1] - MIB)
    return Link(
        source,
        target,
        float(round((LARGE - MIB) / max(one_way[LARGE] - one_way[MIB], 1e-9))),
        latency=_ns(latency),
        overhead=_ns(each),
        summing=float(round(2 * (len(everyone) - 1) / len(everyone) / per_byte)),
        times=_growing(beyond),
    )


def _sums(found: Measured) -> tuple[Sum, ...]:
    """The times of all-reduces. For a number of nodes that was not measured they are those of the next number that
    was."""
    measured = sorted({num_nodes for num_nodes, _ in found.selection.groups})
    sums = []
    for num_nodes in range(measured[0], len(found.seats.nodes) + 1):
        like = next(each for each in measured if each == num_nodes or each > num_nodes > 1)
        for (nodes, _), groups in found.selection.groups.items():
            if nodes == like:
                times = {size: found.numbers[all_reduce(groups[0], size)] for size in SUMS}
                sums.append(Sum(len(groups[0]), num_nodes, _growing(times)))
    return tuple(sums)


def _on_buses(
    devices: tuple[Device, ...], links: list[Link], found: Measured
) -> tuple[tuple[Link, ...], tuple[Bus, ...]]:
    """Links inside nodes, with the buses that they share: each device's port and each node, if measured."""
    alone = max((link.bandwidth for link in links), default=0.0)  # a lone message is not slowed
    rates = {name: float(round(max(found.numbers[name], alone))) for name in found.selection.inside}
    node = {device.name: device.node for device in devices}
    made: dict[str, Bus] = {}

    def buses(link: Link) -> list[Bus]:
        names = [(f"{end}'s port", PORT) for end in (link.source, link.target)]
        names.append((f"node {node[link.source]}", NODE))
        return [made.setdefault(name, Bus(name, rates[of])) for name, of in names if of in rates]

    known = [replace(link, buses=tuple(bus.name for bus in buses(link))) for link in links]
    return tuple(known), tuple(made.values())


def _everyone(found: Measured) -> tuple[int, ...]:
    return tuple(range(len(found.seats.devices)))


def _adapter(node: int) -> str:
    return f"adapter{node}"


def _growing(times: dict[int, float]) -> tuple[tuple[int, int], ...]:
    """Bytes and ns of a curve. If a larger message was faster than a smaller one, both get their mean."""
    levels: list[tuple[float, list[int]]] = []  # seconds, and the sizes that take so long
    for size, seconds in sorted(times.items()):
        level, sizes = seconds, [size]
        while levels and levels[-1][0] > level:
            before, others = levels.pop()
            level = (before * len(others) + level * len(sizes)) / (len(others) + len(sizes))
            sizes = others + sizes
        levels.append((level, sizes))
    return tuple((size, _ns(level)) for level, sizes in levels for size in sizes)


def _ns(seconds: float) -> int:
    return max(round(seconds * 1e9), 0)
