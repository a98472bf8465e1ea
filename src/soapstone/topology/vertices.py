"""Devices, and the links that join them to one another and to switches."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TopologyError

_LARGEST_LATENCY = 2**40  # ns; as in the core


@dataclass(frozen=True, slots=True)
class Device:
    """Where tasks run. `kind` names the row of the cost tables, `memory` is in bytes. `send`, `receive` and `sum` are
    what a message or a sum costs the thread that issues it, in ns: a CPU's own, or a GPU's host, which runs ahead."""

    name: str
    kind: str
    node: int
    memory: int
    send: int = 0
    receive: int = 0
    sum: int = 0

    @property
    def has_host(self) -> bool:
        """Whether another thread launches its work."""
        return self.kind != "cpu"

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        _check_name(self.name, f"{where}: name")
        _check_name(self.kind, f"{where}: kind")
        _check_whole(self.node, f"{where}: node", least=0, most=2**31 - 1)
        _check_whole(self.memory, f"{where}: memory", least=1)
        for name in ("send", "receive", "sum"):
            _check_whole(getattr(self, name), f"{where}: {name}", least=0, most=2**31 - 1)


@dataclass(frozen=True, slots=True)
class Link:
    """A connection both ways between two vertices: `bandwidth` in bytes/s, `latency` and `overhead` in ns.

    Where `duplex` is false the two directions share the bandwidth; where `overlap` is false a message over this link
    keeps the devices at its ends from computing. `summing` is the bandwidth that a collective reaches, since it also
    adds; None: the same. `sharp` is the bandwidth of an all-reduce that the switch at its end sums (NVLink SHARP);
    None: it cannot.
    """

    source: str
    target: str
    bandwidth: float
    latency: int = 0
    overhead: int = 0
    duplex: bool = True
    overlap: bool = True
    summing: float | None = None
    sharp: float | None = None

    def __post_init__(self) -> None:
        where = f"link {self.source!r} to {self.target!r}"
        _check_name(self.source, f"{where}: source")
        _check_name(self.target, f"{where}: target")
        if self.source == self.target:
            raise TopologyError(f"{where}: joins a vertex to itself; remove it")
        _check_bandwidth(self.bandwidth, f"{where}: bandwidth")
        _check_whole(self.latency, f"{where}: latency", least=0, most=_LARGEST_LATENCY)
        _check_whole(self.overhead, f"{where}: overhead", least=0, most=_LARGEST_LATENCY)
        _check_flag(self.duplex, f"{where}: duplex")
        _check_flag(self.overlap, f"{where}: overlap")
        if self.summing is not None:
            _check_bandwidth(self.summing, f"{where}: summing")
        if self.sharp is not None:
            _check_bandwidth(self.sharp, f"{where}: sharp")


def _check_name(value: object, what: str) -> None:
    if not isinstance(value, str) or not value:
        raise TopologyError(f"{what} must be a name, not {value!r}")


def _check_whole(value: object, what: str, *, least: int, most: int = 2**62) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TopologyError(f"{what} must be a whole number from {least} to {most}, not {value!r}")


def _check_bandwidth(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**53:
        raise TopologyError(f"{what} must be at least 1 byte/s and at most 2**53, not {value!r}")


def _check_flag(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise TopologyError(f"{what} must be true or false, not {value!r}")
