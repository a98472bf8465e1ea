"""All numbers, and the topology that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch

from ...parts import keep_freed_memory
from ...topology import Bus, Device, Link, Sum, Topology, kind_of
from ..transports import Pair, Transport
from .meter import LARGE, MESSAGES, MIB, SMALL, SUMS, Meter
from .passes import Found, Measure, Numbers, measured
from .programs import Programs

Progress = Callable[[float, str], None]
PORT, NODE = "what a rank sends and receives at once", "what all ranks of a node send at once"


@dataclass(frozen=True)
class Calibration:
    """A topology as it was measured, the seconds of an all-reduce of each size among all ranks, and the numbers that
    did not repeat themselves."""

    topology: Topology
    all_reduce: dict[int, float] = field(default_factory=dict)
    exposed: float = 0.0  # the share of an all-reduce that compute beside it does not hide
    unsure: tuple[str, ...] = ()


class Calibrator:
    """Every rank makes one and calls `run`."""

    def __init__(
        self, transport: Transport, place: torch.device, progress: Progress = lambda share, what: None
    ) -> None:
        self._transport, self._place, self._progress = transport, place, progress
        self._meter = Meter(transport, place)
        self._pairs = list(combinations(self._meter.everyone, 2))

    def run(self) -> Calibration:
        if self._place.type == "cpu":
            keep_freed_memory()  # as training does
        devices = self._transport.exchange(_device(self._transport.rank, self._transport.size, self._place))
        if not self._pairs:
            return Calibration(Topology(tuple(devices), ()))
        groups = _groups([device.node for device in devices])
        self._transport.open(self._pairs, dict.fromkeys(groups, 1))
        shared = _shared([device.node for device in devices])
        numbers = measured(self._measures(groups, shared), self._progress)
        return self._calibration(devices, groups, shared, numbers)

    def _measures(self, groups: list[tuple[int, ...]], shared: dict[str, list[Pair]]) -> dict[str, Measure]:
        programs, meter = Programs(self._meter), self._meter
        small, large = _by_size(MESSAGES)
        found = {
            "small messages": Measure(lambda: self._messages(small)),
            "large messages": Measure(lambda: self._messages(large), tolerance=0.15),
            "bursts of messages": Measure(self._overheads),
        }
        for ranks in groups:
            for what, sizes, tolerance in zip(("small", "large"), _by_size(SUMS), (0.3, 0.15)):
                act = lambda ranks=ranks, sizes=sizes: self._sums(ranks, sizes)  # noqa: E731
                found[f"{what} sums of {len(ranks)} ranks"] = Measure(act, tolerance)
        if shared:
            found["messages at once"] = Measure(lambda: self._rates(shared), tolerance=0.15)
        return found | {
            "messages in a program": Measure(lambda: dict(zip(("wall", "thread"), programs.message()))),
            "a sum's cost to its thread": Measure(lambda: {"sum": meter.thread_of_sum()}),
            "what an iteration costs": Measure(lambda: {"iteration": programs.iteration()}),
            "copies of gradients": Measure(lambda: {"copying": programs.copying()}, tolerance=0.15),
            "compute beside a sum": Measure(lambda: {"exposed": programs.exposed(4 * MIB)}, 0.15, absolute=True),
        }

    def _messages(self, sizes: Iterable[int]) -> Found:
        return self._of_pairs(
            {_message(a, b, size): self._meter.one_way(a, b, size) for a, b in self._pairs for size in sizes}
        )

    def _overheads(self) -> Found:
        return self._of_pairs({_overhead(a, b): self._meter.overhead(a, b) for a, b in self._pairs})

    def _of_pairs(self, own: dict[str, float]) -> Found:
        """Of each number what the first rank of its pair has: others have nothing."""
        found = self._transport.exchange(own)
        return {name: max(each[name] for each in found) for name in own}

    def _rates(self, shared: dict[str, list[Pair]]) -> Found:
        return {name: self._meter.rate_together(pairs, 4 * MIB) for name, pairs in shared.items()}

    def _sums(self, ranks: tuple[int, ...], sizes: Iterable[int]) -> Found:
        return {_sum(ranks, size): self._meter.all_reduce(ranks, size) for size in sizes}

    def _calibration(
        self, devices: list[Device], groups: list[tuple[int, ...]], shared: dict[str, list[Pair]], numbers: Numbers
    ) -> Calibration:
        end, total, iteration = (_ns(numbers[name]) for name in ("thread", "sum", "iteration"))
        known = [
            replace(
                device,
                send=end // 2,
                receive=end // 2,
                sum=total,
                iteration=iteration,
                copying=round(numbers["copying"]),
            )
            for device in devices
        ]
        exposed = round(numbers["exposed"], 2)
        links = [self._link(known[a], known[b], a, b, numbers, exposed) for a, b in self._pairs]
        sums = [self._measured_sum(devices, ranks, numbers) for ranks in groups]
        everyone = {size: numbers[_sum(self._meter.everyone, size)] for size in SUMS}
        alone = max(link.bandwidth for link in links)
        rates = {name: float(round(max(numbers[name], alone))) for name in shared}  # a lone message is not slowed
        shared_links, buses = _on_buses(known, links, rates)
        topology = Topology(tuple(known), shared_links, tuple(sums), buses)
        return Calibration(topology, everyone, exposed, tuple(numbers.unsure))

    def _measured_sum(self, devices: list[Device], ranks: tuple[int, ...], numbers: Numbers) -> Sum:
        nodes = {devices[rank].node for rank in ranks}
        return Sum(len(ranks), len(nodes), _growing({size: numbers[_sum(ranks, size)] for size in SUMS}))

    def _link(self, a: Device, b: Device, i: int, j: int, numbers: Numbers, exposed: float) -> Link:
        one_way = {size: numbers[_message(i, j, size)] for size in MESSAGES}
        overhead = min(numbers[_overhead(i, j)], one_way[SMALL])
        latency = one_way[SMALL] - overhead
        if self._place.type == "cpu":  # in a program it takes longer: threads stop and start
            latency = max(latency, numbers["wall"] - max(overhead, numbers["thread"] / 2))
        beyond = {size: max(seconds - one_way[SMALL], 0.0) for size, seconds in one_way.items()}
        everyone = self._meter.everyone
        large, small = (numbers[_sum(everyone, size)] for size in (SUMS[-1], MIB))
        per_byte = max(large - small, 1e-9) / (SUMS[-1] - MIB)
        return Link(
            a.name,
            b.name,
            float(round((LARGE - MIB) / max(one_way[LARGE] - one_way[MIB], 1e-9))),
            latency=_ns(latency),
            overhead=_ns(overhead),
            exposed=exposed,
            summing=float(round(2 * (len(everyone) - 1) / len(everyone) / per_byte)),
            times=_growing(beyond),
        )


def _by_size(sizes: Iterable[int]) -> tuple[list[int], list[int]]:
    """Those that are small, and those that are large."""
    sizes = list(sizes)
    return [size for size in sizes if size < MIB], [size for size in sizes if size >= MIB]


def _groups(nodes: list[int]) -> list[tuple[int, ...]]:
    """The sets of ranks whose sums are measured: the first 2, 4, 8, ... of a node, one of each node, and all."""
    ranks = range(len(nodes))
    first = [rank for rank in ranks if nodes[rank] == nodes[0]]
    inside = [tuple(first[: 2**i]) for i in range(1, len(first).bit_length()) if 2**i <= len(first)]
    leaders = tuple(rank for rank in ranks if nodes[rank] not in nodes[:rank])
    wanted = [*inside, tuple(first), leaders, tuple(ranks)]
    return [group for group in dict.fromkeys(wanted) if len(group) > 1]


def _shared(nodes: list[int]) -> dict[str, list[Pair]]:
    """The pairs of ranks that talk at once to show what they share: one with all others of its node, and all of them.
    One pair shows both."""
    first = [rank for rank in range(len(nodes)) if nodes[rank] == nodes[0]]
    pairs = list(combinations(first, 2))
    if len(first) < 2:
        return {}
    return {NODE: pairs} if len(first) == 2 else {PORT: [pair for pair in pairs if first[0] in pair], NODE: pairs}


def _on_buses(
    devices: list[Device], links: list[Link], rates: dict[str, float]
) -> tuple[tuple[Link, ...], tuple[Bus, ...]]:
    """Links inside nodes with the buses that they share."""
    node = {device.name: device.node for device in devices}
    found: dict[str, Bus] = {}

    def buses(link: Link) -> list[Bus]:
        if node[link.source] != node[link.target]:
            return []
        names = [(f"{end}'s port", PORT) for end in (link.source, link.target)]
        names.append((f"node {node[link.source]}", NODE))
        return [found.setdefault(name, Bus(name, rates[of])) for name, of in names if of in rates]

    known = [replace(link, buses=tuple(bus.name for bus in buses(link))) for link in links]
    return tuple(known), tuple(found.values())


def _growing(times: dict[int, float]) -> tuple[tuple[int, int], ...]:
    """Bytes and ns of a curve. Where a larger message came sooner, both take their mean."""
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


def _message(a: int, b: int, size: int) -> str:
    return f"{size:,} bytes from rank {a} to {b}"


def _overhead(a: int, b: int) -> str:
    return f"each of a burst from rank {a} to {b}"


def _sum(ranks: tuple[int, ...], size: int) -> str:
    return f"a sum of {size:,} bytes among ranks {', '.join(map(str, ranks))}"


def _device(rank: int, size: int, place: torch.device) -> Device:
    """What a rank computes on; ranks of one machine share its memory."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    node = int(os.environ.get("GROUP_RANK", "0"))
    if place.type == "cuda":
        found = torch.cuda.get_device_properties(place)
        sharing = max(-(-local // max(torch.cuda.device_count(), 1)), 1)
        return Device(f"gpu{rank}", kind_of(found.name), node, found.total_memory // sharing)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(f"cpu{rank}", "cpu", node, memory // local)
