"""The machines: devices and switches joined by links.

A link's end that names no device is a switch. Resources, which serve tasks one by one, are numbered devices first, then
links in order: a duplex link is two resources, one each way, a shared one is a single resource; then buses. What a
message holds on its way is the core's business (`cpp/machine/topology.hpp`).
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from .. import _core
from ..errors import SoapstoneError, TopologyError, meant
from ..files import checked_path, decode, not_a_file, shortened, write_atomically
from .detection import detected
from .document import read_yaml, written_yaml
from .layout import lay_out
from .vertices import Bus, Device, Link, Sum

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices, the links between them, `sums` where all-reduces were measured, and `buses` that links share; raises
    TopologyError unless every device reaches every other."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    sums: tuple[Sum, ...] = ()
    buses: tuple[Bus, ...] = ()
    _native: _core.Topology | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", tuple(self.links))
        object.__setattr__(self, "sums", tuple(self.sums))
        object.__setattr__(self, "buses", tuple(self.buses))
        if not self.devices:
            raise TopologyError("a topology needs at least one device")
        _check_unique((repr(device.name) for device in self.devices), "two devices are named", "; rename one")
        joined = (" and ".join(sorted((repr(link.source), repr(link.target)))) for link in self.links)
        _check_unique(joined, "two links join", "; make them one, with the sum of their bandwidths")
        _check_unique((repr(bus.name) for bus in self.buses), "two buses are named", "; rename one")
        _check_buses(self)
        _check_switches(self)
        _check_connected(self)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a preset such as "p100:4x4" (4 nodes of 4 devices) stands for, or several on one network, such
        as "h100:1x4+a100:1x8"; raises TopologyError."""
        return cls(*lay_out(text))

    @classmethod
    def detect(cls) -> Self:
        """Return this machine: its CUDA devices and how they are joined, or else its CPU cores."""
        return cls(*detected())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the topology that a YAML file describes, as `save` writes it; raises TopologyError."""
        path = checked_path(path)
        try:
            rows: _Rows = decode(_Rows, _content(path), "the topology")
            return cls(rows.devices, rows.links, rows.sums, rows.buses)
        except FileNotFoundError:
            remedy = "`soapstone calibrate` writes one"
            raise TopologyError(not_a_file(path, "topology file", remedy, ".yaml", ".yml")) from None
        except OSError as error:
            raise TopologyError(f"topology file {path}: cannot be read: {error.strerror}") from None
        except SoapstoneError as error:
            raise TopologyError(f"topology file {path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a YAML file that `load` reads back as an equal topology; raises SoapstoneError, and leaves no half."""
        content = {
            "format": FORMAT,
            "devices": [asdict(device) for device in self.devices],
            "links": [asdict(link) for link in self.links],
            "sums": [asdict(found) for found in self.sums],
            "buses": [asdict(bus) for bus in self.buses],
        }
        write_atomically(Path(path), written_yaml(content))

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def switches(self) -> tuple[str, ...]:
        """The names that links join and no device bears, in the order of their first mention."""
        names = {device.name for device in self.devices}
        ends = (end for link in self.links for end in (link.source, link.target))
        return tuple(dict.fromkeys(end for end in ends if end not in names))

    @property
    def resources(self) -> list[str]:
        """A readable name for each resource: "gpu0", "gpu0→host0", "host0↔network" for a shared link, or a bus's."""
        names = [device.name for device in self.devices]
        for link in self.links:
            if link.duplex:
                names += [f"{link.source}→{link.target}", f"{link.target}→{link.source}"]
            else:
                names.append(f"{link.source}↔{link.target}")
        return [*names, *(bus.name for bus in self.buses)]

    @property
    def native(self) -> _core.Topology:
        """The core's own copy, made at the first use."""
        if self._native is None:
            object.__setattr__(self, "_native", _build_native(self))
        assert self._native is not None
        return self._native

    def __reduce__(
        self,
    ) -> tuple[type[Self], tuple[tuple[Device, ...], tuple[Link, ...], tuple[Sum, ...], tuple[Bus, ...]]]:
        return type(self), (self.devices, self.links, self.sums, self.buses)  # the core's copy does not travel


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a topology file holds."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    sums: tuple[Sum, ...] = ()
    buses: tuple[Bus, ...] = ()


def _content(path: Path) -> Any:
    """What a file holds but for its format. Raises TopologyError for one of another version."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        return content
    if (found := content.pop("format", FORMAT)) != FORMAT:
        raise TopologyError(f"has topology format {shortened(found)}, this version reads {FORMAT}")
    return content


def _build_native(topology: Topology) -> _core.Topology:
    names = [*(device.name for device in topology.devices), *topology.switches]
    index = {name: i for i, name in enumerate(names)}
    buses = {bus.name: i for i, bus in enumerate(topology.buses)}
    return _core.Topology(
        topology.num_devices,
        len(topology.switches),
        [device.node for device in topology.devices],
        [
            _core.Link(
                index[link.source],
                index[link.target],
                link.bandwidth,
                link.latency,
                link.overhead,
                link.duplex,
                link.exposed,
                link.bandwidth if link.summing is None else link.summing,
                link.sharp or 0,
                _core.Curve(link.times),
                [buses[name] for name in link.buses],
            )
            for link in topology.links
        ],
        [_core.Host(d.send, d.receive, d.sum, d.iteration, d.copying or 0, d.has_host) for d in topology.devices],
        [_core.MeasuredSum(s.members, s.nodes, _core.Curve(s.times), s.exposed) for s in topology.sums],
        [bus.bandwidth for bus in topology.buses],
    )


def _check_unique(names: Iterable[str], what: str, remedy: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"{what} {name}{remedy}")
        seen.add(name)


def _check_buses(topology: Topology) -> None:
    names = [bus.name for bus in topology.buses]
    for link in topology.links:
        for name in link.buses:
            if name not in names:
                remedy = meant(name, names, "name it under `buses`")
                raise TopologyError(f"link {link.source!r} to {link.target!r}: there is no bus {name!r}; {remedy}")


def _neighbours(topology: Topology) -> dict[str, list[str]]:
    neighbours: dict[str, list[str]] = {device.name: [] for device in topology.devices}
    for link in topology.links:
        neighbours.setdefault(link.source, []).append(link.target)
        neighbours.setdefault(link.target, []).append(link.source)
    return neighbours


def _check_switches(topology: Topology) -> None:
    """A switch with one link leads nowhere: it is a device's name mistyped."""
    neighbours = _neighbours(topology)
    for switch in topology.switches:
        if len(neighbours[switch]) == 1:
            raise TopologyError(
                f"link {neighbours[switch][0]!r} to {switch!r}: there is no device {switch!r}, and as a switch it "
                "joins nothing else; name a device, or remove the link"
            )


def _check_connected(topology: Topology) -> None:
    neighbours = _neighbours(topology)
    first = topology.devices[0].name
    seen, frontier = {first}, [first]
    while frontier:
        fresh = [name for name in neighbours[frontier.pop()] if name not in seen]
        seen.update(fresh)
        frontier += fresh
    lost = [device.name for device in topology.devices if device.name not in seen]
    if lost:
        raise TopologyError(f"no route leads from device {first!r} to {', '.join(map(repr, lost))}; add links that do")


def neighbours_of(topology: Topology) -> int:
    """How many other ranks are at work beside one on its machine, as far as this one has cores for them."""
    nodes = Counter(device.node for device in topology.devices)
    return min(max(nodes.values()), len(os.sched_getaffinity(0))) - 1
