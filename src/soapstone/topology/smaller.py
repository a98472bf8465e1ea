"""What is left of a topology when the last of its devices are gone."""

from __future__ import annotations

from collections import Counter

from ..errors import TopologyError
from .cluster import Topology
from .vertices import Link


def first_devices(topology: Topology, count: int) -> Topology:
    """The first devices of a topology, and the links that still lead somewhere. Raises TopologyError where there are
    not so many, or one reaches another only by way of one that is gone."""
    if not 1 <= count <= topology.num_devices:
        raise TopologyError(f"the topology has {topology.num_devices} devices, of which {count} cannot be taken")
    gone = {device.name for device in topology.devices[count:]}
    links = [link for link in topology.links if not {link.source, link.target} & gone]
    names = {device.name for device in topology.devices[:count]}
    while dangling := _dangling(links, names):
        links = [link for link in links if not {link.source, link.target} & dangling]
    used = {name for link in links for name in link.buses}
    nodes = len({device.node for device in topology.devices[:count]})
    sums = tuple(each for each in topology.sums if each.members <= count and each.nodes <= nodes)
    buses = tuple(bus for bus in topology.buses if bus.name in used)
    return Topology(topology.devices[:count], tuple(links), sums, buses)


def _dangling(links: list[Link], devices: set[str]) -> set[str]:
    """The switches with one link."""
    ends = Counter(end for link in links for end in (link.source, link.target))
    return {name for name, times in ends.items() if times == 1 and name not in devices}
