"""Devices, and the links that join them to one another and to switches."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TopologyError
from ..files import shortened

_LARGEST_LATENCY = 2**40  # ns; as in the core
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Device:
    """Where tasks run. `kind` names the row of the cost tables, `memory` is in bytes.

    `send`, `receive` and `sum` are what a message or a sum costs the thread that issues it, `iteration` what each
    iteration costs it once, in ns: a CPU's own thread, or a GPU's host, which runs ahead. What is summed is copied
    first, at `copying` bytes/s; None: that takes no time.
    """

    name: str
    kind: str
    node: int
    memory: int
    send: int = 0
    receive: int = 0
    sum: int = 0
    iteration: int = 0
    copying: float | None = None

    @property
    def has_host(self) -> bool:
        """Whether another thread launches its work."""
        return self.kind != "cpu"

    def __post_init__(self) -> None:
        where = f"device {shortened(self.name)}"
        _check_name(self.name, f"{where}: name")
        _check_name(self.kind, f"{where}: kind")
        _check_whole(self.node, f"{where}: node", least=0, most=2**31 - 1)
        _check_whole(self.memory, f"{where}: memory", least=1)
        for name in ("send", "receive", "sum", "iteration"):
            _check_whole(getattr(self, name), f"{where}: {name}", least=0, most=2**31 - 1)
        if self.copying is not None:
            _check_bandwidth(self.copying, f"{where}: copying")


@dataclass(frozen=True, slots=True)
class Link:
    """A connection both ways between two vertices: `bandwidth` in bytes/s, `latency` and `overhead` in ns.

    Where `duplex` is false the two directions share the bandwidth; `exposed` is the share of a message's time that
    keeps the devices at its ends from computing. `summing` is the bandwidth that a collective reaches, since it also
    adds; None: the same. `sharp` is the bandwidth of an all-reduce that the switch at its end sums (NVLink SHARP);
    None: it cannot. `times`, where they were measured, are (bytes, ns) of messages beyond latency and overhead, and
    stand in for the bandwidth. `buses` names what the link shares with others.
    """

    source: str
    target: str
    bandwidth: float
    latency: int = 0
    overhead: int = 0
    duplex: bool = True
    exposed: float = 0.0
    summing: float | None = None
    sharp: float | None = None
    times: tuple[tuple[int, int], ...] = ()
    buses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"link {shortened(self.source)} to {shortened(self.target)}"
        _check_name(self.source, f"{where}: source")
        _check_name(self.target, f"{where}: target")
        if self.source == self.target:
            raise TopologyError(f"{where}: joins a vertex to itself; remove it")
        _check_bandwidth(self.bandwidth, f"{where}: bandwidth")
        _check_whole(self.latency, f"{where}: latency", least=0, most=_LARGEST_LATENCY)
        _check_whole(self.overhead, f"{where}: overhead", least=0, most=_LARGEST_LATENCY)
        _check_flag(self.duplex, f"{where}: duplex")
        _check_share(self.exposed, f"{where}: exposed")
        if self.summing is not None:
            _check_bandwidth(self.summing, f"{where}: summing")
        if self.sharp is not None:
            _check_bandwidth(self.sharp, f"{where}: sharp")
        object.__setattr__(self, "times", _curve(self.times, f"{where}: times"))
        object.__setattr__(self, "buses", tuple(self.buses))


@dataclass(frozen=True, slots=True)
class Bus:
    """What several links share, in bytes/s both ways together: a device's port, or a node's memory."""

    name: str
    bandwidth: float

    def __post_init__(self) -> None:
        where = f"bus {shortened(self.name)}"
        _check_name(self.name, f"{where}: name")
        _check_bandwidth(self.bandwidth, f"{where}: bandwidth")


@dataclass(frozen=True, slots=True)
class Sum:
    """What an all-reduce among so many members in so many nodes takes, as measured: (bytes, ns). `exposed` is the share
    of it that keeps them from computing; None: as on its links."""

    members: int
    nodes: int
    times: tuple[tuple[int, int], ...]
    exposed: float | None = None

    def __post_init__(self) -> None:
        where = f"the sum among {shortened(self.members)}"
        _check_whole(self.members, f"{where}: members", least=2, most=2**31 - 1)
        _check_whole(self.nodes, f"{where}: nodes", least=1, most=2**31 - 1)
        object.__setattr__(self, "times", _curve(self.times, f"{where}: times"))
        if not self.times:
            raise TopologyError(f"{where}: has no times; write two or more pairs of bytes and ns, or remove it")
        if self.exposed is not None:
            _check_share(self.exposed, f"{where}: exposed")


def _check_name(value: object, what: str) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise TopologyError(f"{what} must be a name, not {shortened(value)}")


def _check_whole(value: object, what: str, *, least: int, most: int = 2**62) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TopologyError(f"{what} must be a whole number from {least} to {most}, not {shortened(value)}")


def _check_bandwidth(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**53:
        raise TopologyError(f"{what} must be at least 1 byte/s and at most 2**53, not {shortened(value)}")


def _check_share(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise TopologyError(f"{what} must be a share from 0 to 1, not {shortened(value)}")


def _curve(value: object, what: str) -> tuple[tuple[int, int], ...]:
    """Pairs of bytes and ns that both grow: none, or two and more."""
    if not isinstance(value, list | tuple) or len(value) == 1:
        raise TopologyError(f"{what} must be two or more pairs of bytes and ns, not {shortened(value)}")
    found: list[tuple[int, int]] = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TopologyError(f"{what} must be pairs of bytes and ns, not {shortened(pair)}")
        for number in pair:
            _check_whole(number, what, least=0, most=2**53)
        if found and not (pair[0] > found[-1][0] and pair[1] >= found[-1][1]):
            raise TopologyError(f"{what} must grow, but {list(pair)} comes after {list(found[-1])}")
        found.append((pair[0], pair[1]))
    return tuple(found)


def _check_flag(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise TopologyError(f"{what} must be true or false, not {shortened(value)}")
