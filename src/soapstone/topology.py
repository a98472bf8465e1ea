"""The machines: devices and switches joined by links.

A link's end that names no device is a switch. Resources, which serve tasks one by one, are numbered devices first, then
links in order: a duplex link is two resources, one each way, a shared one is a single resource. What a message holds on
its way is the core's business (`cpp/topology.hpp`).
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import yaml

from . import _core
from .errors import SoapstoneError, TopologyError
from .files import decode, write_atomically

_LARGEST_LATENCY = 2**40  # ns; as in the core
_MOST_DEVICES = 2**16  # of a preset


@dataclass(frozen=True, slots=True)
class Device:
    """Where tasks run. `kind` names the row of the cost tables, `memory` is in bytes."""

    name: str
    kind: str
    node: int
    memory: int

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        _check_name(self.name, f"{where}: name")
        _check_name(self.kind, f"{where}: kind")
        _check_whole(self.node, f"{where}: node", least=0, most=2**31 - 1)
        _check_whole(self.memory, f"{where}: memory", least=1)


@dataclass(frozen=True, slots=True)
class Link:
    """A connection both ways between two vertices: `bandwidth` in bytes/s, `latency` and `overhead` in ns.

    Where `duplex` is false the two directions share the bandwidth; where `overlap` is false a message over this link
    keeps the devices at its ends from computing.
    """

    source: str
    target: str
    bandwidth: float
    latency: int = 0
    overhead: int = 0
    duplex: bool = True
    overlap: bool = True

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


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices and the links between them; raises TopologyError unless every device reaches every other."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    _native: _core.Topology | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", tuple(self.links))
        if not self.devices:
            raise TopologyError("a topology needs at least one device")
        _check_unique((repr(device.name) for device in self.devices), "two devices are named", "; rename one")
        joined = (" and ".join(sorted((repr(link.source), repr(link.target)))) for link in self.links)
        _check_unique(joined, "two links join", "; make them one, with the sum of their bandwidths")
        _check_switches(self)
        _check_connected(self)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a preset such as "p100:4x4" (4 nodes of 4 devices) stands for; raises TopologyError."""
        match = re.fullmatch(r"(\w+):(\d{1,9})x(\d{1,9})", text, re.ASCII) if isinstance(text, str) else None
        known = ", ".join(preset_names())
        if match is None:
            raise TopologyError(f"topology {text!r}: write PRESET:NODESxDEVICES, such as p100:4x4; presets are {known}")
        if match[1] not in preset_names():
            raise TopologyError(f"topology {text!r}: no preset {match[1]!r}; there are {known}")
        return cls(*_expand(_read_preset(match[1]), int(match[2]), int(match[3]), text))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the topology that a YAML file describes, as `save` writes it; raises TopologyError."""
        try:
            content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
            rows: _Rows = decode(_Rows, content, "the topology")
            return cls(rows.devices, rows.links)
        except (OSError, UnicodeDecodeError) as error:
            raise TopologyError(f"topology file {path}: cannot be read: {error}") from None
        except SoapstoneError as error:
            raise TopologyError(f"topology file {path}: {error}") from None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise TopologyError(f"topology file {path}: is not YAML: {' '.join(str(error).split())}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a YAML file that `load` reads back as an equal topology; raises SoapstoneError, and leaves no half."""
        content = {
            "devices": [asdict(device) for device in self.devices],
            "links": [asdict(link) for link in self.links],
        }
        write_atomically(Path(path), yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=1000))

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
        """A readable name for each resource: "gpu0", "gpu0→host0", or "host0↔network" for a shared link."""
        names = [device.name for device in self.devices]
        for link in self.links:
            if link.duplex:
                names += [f"{link.source}→{link.target}", f"{link.target}→{link.source}"]
            else:
                names.append(f"{link.source}↔{link.target}")
        return names

    @property
    def native(self) -> _core.Topology:
        """The core's own copy, made at the first use."""
        if self._native is None:
            object.__setattr__(self, "_native", _build_native(self))
        assert self._native is not None
        return self._native

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Device, ...], tuple[Link, ...]]]:
        return type(self), (self.devices, self.links)  # the core's copy does not travel


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a topology file holds."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 12.5e9 for a string, since its exponent has no sign; here it is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def preset_names() -> list[str]:
    """Return the names that `Topology.parse` knows."""
    folder = resources.files("soapstone") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _read_preset(name: str) -> dict[str, Any]:
    text = (resources.files("soapstone") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    preset: dict[str, Any] = yaml.safe_load(text)
    return preset


def _expand(
    preset: Mapping[str, Any], num_nodes: int, per_node: int, text: str
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Lay out nodes whose devices are joined in pairs and by a host switch, the hosts by one network switch."""
    most = preset.get("most_per_node", math.inf)
    if num_nodes < 1 or per_node < 1:
        raise TopologyError(f"topology {text!r}: has no device; both numbers must be at least 1")
    if num_nodes * per_node > _MOST_DEVICES:
        raise TopologyError(f"topology {text!r}: has more than {_MOST_DEVICES} devices; write smaller numbers")
    if per_node > most:
        raise TopologyError(
            f"topology {text!r}: this preset has at most {most} devices a node; write a YAML file instead"
        )
    kind, memory = preset["device"]["kind"], preset["device"]["memory"]
    nodes = [
        [Device(f"{preset['device']['prefix']}{node * per_node + i}", kind, node, memory) for i in range(per_node)]
        for node in range(num_nodes)
    ]
    links: list[Link] = []
    for node, devices in enumerate(nodes):
        if "pair" in preset:
            links += [Link(a.name, b.name, **preset["pair"]) for a, b in combinations(devices, 2)]
        if num_nodes * per_node > 1:
            links += [Link(device.name, f"host{node}", **preset["host"]) for device in devices]
        if num_nodes > 1:
            links.append(Link(f"host{node}", "network", **preset["network"]))
    return tuple(device for devices in nodes for device in devices), tuple(links)


def _build_native(topology: Topology) -> _core.Topology:
    names = [*(device.name for device in topology.devices), *topology.switches]
    index = {name: i for i, name in enumerate(names)}
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
                link.overlap,
            )
            for link in topology.links
        ],
    )


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


def _check_unique(names: Iterable[str], what: str, remedy: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"{what} {name}{remedy}")
        seen.add(name)


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
