"""Presets: nodes laid out from data. `presets/*.yaml` name every figure's source.

A preset has a `device`, `most_per_node`, `groups` (switches that so many neighbours share) and `links`, each from and
to "device", a group, a switch of the node's own or "network", which all nodes share. A link from device to device has
`pairs`: "all", or numbers inside the node; `least` and `most` limit a link to nodes of that many devices. Where `sums`
has bandwidths, all-reduces go to one device of a node after the other, and then from node to node.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

from ..errors import TopologyError, meant
from .document import parse_yaml
from .vertices import Device, Link, Sum

Vertices = tuple[tuple[Device, ...], tuple[Link, ...], tuple[Sum, ...]]

_MOST_DEVICES = 2**16
_SUMMED = (1, 2**30)  # bytes: what lies between is in proportion
_ENDS = ("from", "to", "pairs", "least", "most")


def preset_names() -> list[str]:
    """Return the names that `Topology.parse` knows."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))


def about_presets() -> dict[str, str]:
    """Return, by name, the sentence that each preset's file begins with."""
    found = {}
    for name in preset_names():
        comment = (_folder() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n\n")[0]
        text = " ".join(line.lstrip("# ") for line in comment.splitlines())
        found[name] = text.partition(": ")[2].split(". Times in ns")[0].split(" Times in ns")[0]
    return found


def lay_out(text: str) -> Vertices:
    """The devices, links and sums of one preset, or of several joined by "+" on one network. Raises TopologyError."""
    words = text.split("+") if isinstance(text, str) else [text]
    matches = [_match(word, text) for word in words]
    num_nodes = sum(int(match[2]) for match in matches)
    if sum(int(match[2]) * int(match[3]) for match in matches) > _MOST_DEVICES:
        raise TopologyError(f"topology {text!r}: has more than {_MOST_DEVICES} devices; write smaller numbers")
    devices: list[Device] = []
    links: list[Link] = []
    node = 0
    for match in matches:
        preset, per_node = _preset(match[1]), int(match[3])
        most = preset.get("most_per_node", math.inf)
        if per_node > most:
            raise TopologyError(f"topology {text!r}: {match[1]} has at most {most} devices a node; write a YAML file")
        for _ in range(int(match[2])):
            own = [_device(preset, len(devices) + i, node) for i in range(per_node)]
            devices += own
            links += _links(preset, own, node)
            node += 1
    if num_nodes == 1:
        links = [link for link in links if link.target != "network"]
    sums = _sums([(_preset(match[1]), int(match[2]), int(match[3])) for match in matches], text)
    return tuple(devices), tuple(_without_dead_ends(links, devices)), tuple(sums)


def _match(word: str, text: str) -> re.Match[str]:
    match = re.fullmatch(r"(\w+):(\d{1,9})x(\d{1,9})", word, re.ASCII) if isinstance(word, str) else None
    known = ", ".join(preset_names())
    if match is None:
        raise TopologyError(f"topology {text!r}: write PRESET:NODESxDEVICES, such as p100:4x4; presets are {known}")
    if match[1] not in preset_names():
        remedy = meant(match[1], preset_names(), f"there are {known}")
        raise TopologyError(f"topology {text!r}: no preset {match[1]!r}; {remedy}")
    if int(match[2]) < 1 or int(match[3]) < 1:
        raise TopologyError(f"topology {text!r}: has no device; both numbers must be at least 1")
    return match


@cache
def _preset(name: str) -> dict[str, Any]:
    preset: dict[str, Any] = parse_yaml((_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    return preset


def _folder() -> Any:
    return resources.files(__package__) / "presets"


def _device(preset: Mapping[str, Any], number: int, node: int) -> Device:
    device = preset["device"]
    return Device(f"{device['prefix']}{number}", device["kind"], node, device["memory"])


def _links(preset: Mapping[str, Any], devices: list[Device], node: int) -> Iterator[Link]:
    groups = preset.get("groups", {})

    def vertices(level: str) -> list[str]:
        """The vertex of this level that each device is below of."""
        if level == "device":
            return [device.name for device in devices]
        if level in groups:
            return [f"{level}{node}.{i // groups[level]}" for i in range(len(devices))]
        return [level if level == "network" else f"{level}{node}"] * len(devices)

    for row in preset["links"]:
        if not row.get("least", 1) <= len(devices) <= row.get("most", math.inf):
            continue
        facts = {key: value for key, value in row.items() if key not in _ENDS}
        if "pairs" in row:
            chosen = combinations(range(len(devices)), 2) if row["pairs"] == "all" else row["pairs"]
            joined = [(devices[a].name, devices[b].name) for a, b in chosen if max(a, b) < len(devices)]
        else:
            joined = list(dict.fromkeys(zip(vertices(row["from"]), vertices(row["to"]))))
        for source, target in joined:
            yield Link(source, target, **facts)


def _sums(kinds: list[tuple[Mapping[str, Any], int, int]], text: str) -> Iterator[Sum]:
    """What an all-reduce takes among so many devices of each of so many nodes, where a preset says how."""
    if not any("sums" in preset for preset, _, _ in kinds):
        return
    if len(kinds) > 1:
        raise TopologyError(f"topology {text!r}: a preset with sums of its own joins no other; write a YAML file")
    preset, num_nodes, per_node = kinds[0]
    for nodes in range(1, num_nodes + 1):
        for members in range(1 if nodes > 1 else 2, per_node + 1):
            per_byte = (members - 1) / preset["sums"]["inside"] + (nodes - 1) / preset["sums"]["across"]
            yield Sum(members * nodes, nodes, tuple((size, round(size * per_byte * 1e9)) for size in _SUMMED))


def _without_dead_ends(links: list[Link], devices: list[Device]) -> list[Link]:
    """Leave out switches that join nothing, such as the one above a single pair."""
    names = {device.name for device in devices}
    while True:
        counts = Counter(end for link in links for end in (link.source, link.target))
        kept = [k for k in links if all(end in names or counts[end] > 1 for end in (k.source, k.target))]
        if len(kept) == len(links):
            return kept
        links = kept
