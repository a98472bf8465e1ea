"""Small machines whose times can be worked out by hand, and what messages over them hold."""

from dataclasses import replace
from typing import Any

from soapstone.topology import Device, Link, Topology

GIB = 2**30


def make_device(name: str, node: int = 0) -> Device:
    return Device(name, "toy", node, GIB)


# Two nodes of two devices. A byte takes 1 ns on a host link and 2 ns on a network link.
HOST: dict[str, Any] = {"bandwidth": 1e9, "latency": 5, "overhead": 2}
NETWORK: dict[str, Any] = {"bandwidth": 0.5e9, "latency": 20, "overhead": 10}


def two_nodes(**network: Any) -> Topology:
    return Topology(
        (make_device("a0"), make_device("a1"), make_device("b0", 1), make_device("b1", 1)),
        (
            Link("a0", "A", **HOST),
            Link("a1", "A", **HOST),
            Link("b0", "B", **HOST),
            Link("b1", "B", **HOST),
            Link("A", "net", **NETWORK | network),
            Link("B", "net", **NETWORK | network),
        ),
    )


def two_rails(
    num_nodes: int = 2, *, inside: dict[str, Any] | None = None, adapter: dict[str, Any] | None = None
) -> Topology:
    """Nodes of two devices on a switch of their own, and an adapter for each device."""
    devices = tuple(make_device(f"{node}{i}", "abcd".index(node)) for node in "abcd"[:num_nodes] for i in range(2))
    switches = tuple(Link(device.name, device.name[0].upper(), **HOST | (inside or {})) for device in devices)
    return Topology(
        devices, switches + tuple(Link(device.name, "net", **NETWORK | (adapter or {})) for device in devices)
    )


def as_one_node(topology: Topology) -> Topology:
    """The same links, where a collective knows nothing of nodes."""
    return replace(topology, devices=tuple(replace(device, node=0) for device in topology.devices))


def named(topology: Topology, message: tuple[list[tuple[int, int]], int]) -> tuple[dict[str, int], int]:
    holds, latency = message
    assert len({resource for resource, _ in holds}) == len(holds)
    return {topology.resources[resource]: duration for resource, duration in holds}, latency


def transfer(topology: Topology, source: int, target: int, num_bytes: int) -> tuple[dict[str, int], int]:
    return named(topology, topology.native.transfer(source, target, num_bytes))


def all_reduce(topology: Topology, devices: list[int], num_bytes: int) -> tuple[dict[str, int], int]:
    return named(topology, topology.native.all_reduce(devices, num_bytes))


def duration(message: tuple[list[tuple[int, int]], int]) -> int:
    """Without contention."""
    holds, latency = message
    return latency + max((ns for _, ns in holds), default=0)
