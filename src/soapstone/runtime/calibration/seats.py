"""The device and the node of each rank.

Ranks are on one node if they have the same host name, boot id and network namespace, whatever the launcher says: two
agents on one machine are one node, and two containers on one machine are two.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from ...topology import Device, kind_of
from ..transports import Pair, Transport


@dataclass(frozen=True)
class Seats:
    """The devices by rank, with their nodes numbered by first appearance."""

    devices: tuple[Device, ...]

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node."""
        found: dict[int, list[int]] = {}
        for rank, device in enumerate(self.devices):
            found.setdefault(device.node, []).append(rank)
        return list(found.values())

    def like(self, node: int) -> tuple[str, ...]:
        """The models of a node's devices, which are the same for nodes that are alike."""
        return tuple(device.kind for device in self.devices if device.node == node)

    def share_a_node(self, pair: Pair) -> bool:
        a, b = pair
        return self.devices[a].node == self.devices[b].node

    def pairs_inside(self) -> list[Pair]:
        """The pairs inside nodes, node by node. Of each node the pair whose ranks are farthest apart comes last."""
        inside = [combinations(ranks, 2) for ranks in self.nodes]
        return [pair for pairs in inside for pair in sorted(pairs, key=lambda pair: pair[1] - pair[0])]

    def pairs_across(self) -> list[Pair]:
        everyone = combinations(range(len(self.devices)), 2)
        return [pair for pair in everyone if not self.share_a_node(pair)]


def find_seats(transport: Transport, place: torch.device) -> Seats:
    """The device and node of every rank; every rank calls this. Ranks that share a GPU's or a machine's memory each get
    an equal part of it."""
    found = transport.exchange(_seat(place))
    nodes = {node: i for i, node in enumerate(dict.fromkeys(tuple(each["node"]) for each in found))}
    sharing = Counter(each["memory_of"] for each in found)
    return Seats(
        tuple(
            Device(
                f"{'cpu' if each['kind'] == 'cpu' else 'gpu'}{rank}",
                each["kind"],
                nodes[tuple(each["node"])],
                each["memory"] // sharing[each["memory_of"]],
            )
            for rank, each in enumerate(found)
        )
    )


def _seat(place: torch.device) -> dict[str, Any]:
    boot = _boot_id()
    node = [platform.node(), boot, _network()]
    if place.type == "cuda":
        found = torch.cuda.get_device_properties(place)
        return {"node": node, "kind": kind_of(found.name), "memory": found.total_memory, "memory_of": str(found.uuid)}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"node": node, "kind": "cpu", "memory": memory, "memory_of": boot or platform.node()}


def _boot_id() -> str:
    """Linux's boot id, new at each start of the machine; empty on other systems."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _network() -> str:
    """The network namespace of this process; empty on systems without namespaces."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
