"""This machine's own devices. Loads torch."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import combinations

from ..errors import TopologyError
from .layout import Vertices, lay_out
from .vertices import Device, Link

# Bytes/s each way of one NVLink, by the generation of the device (NVIDIA's data sheets).
_NVLINK = {"p100": 20e9, "v100": 25e9, "a100": 25e9, "h100": 25e9, "h200": 25e9}
_PCIE = 12e9  # PCI-e 3.0 x16 in practice; a calibration measures it


def detected() -> Vertices:
    """The CUDA devices and how they are joined, or else one device for each CPU core that this process may use."""
    try:
        import torch
    except ImportError as error:
        raise TopologyError(f"detection needs torch, which cannot be imported: {error}") from None
    count = torch.cuda.device_count()
    if count == 0:
        return lay_out(f"cpu:1x{len(os.sched_getaffinity(0))}")
    properties = [torch.cuda.get_device_properties(i) for i in range(count)]
    devices = tuple(Device(f"gpu{i}", kind_of(p.name), 0, p.total_memory) for i, p in enumerate(properties))
    return devices, tuple(joined(devices, nvlinks(_matrix()))), ()


def kind_of(name: str) -> str:
    """The row of the cost tables for a device's own name: h200 for "NVIDIA H200"."""
    words = re.findall(r"[a-z]+\d+\w*", name.lower())
    return words[0] if words else re.sub(r"\W+", "-", name.lower()).strip("-")


def is_kind(own: str, wanted: str) -> bool:
    """Whether a device of its own kind can play one of a topology's: any CPU plays any kind of CPU."""
    return own == wanted or (own == "cpu" and wanted.startswith("cpu"))


def nvlinks(matrix: str) -> dict[tuple[int, int], int]:
    """How many NVLinks join each pair, read from `nvidia-smi topo -m`."""
    found: dict[tuple[int, int], int] = {}
    for line in matrix.splitlines():
        words = re.sub(r"\x1b\[\d*m", "", line).split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            continue
        row = int(words[0][3:])
        for column, word in enumerate(words[1:]):
            if column > row and (match := re.fullmatch(r"NV(\d+)", word)):
                found[row, column] = int(match[1])
    return found


def joined(devices: tuple[Device, ...], links: dict[tuple[int, int], int]) -> list[Link]:
    """NVLinks where there are some, and PCI-e to the host for all."""
    if len(devices) == 1:
        return []
    found = [
        Link(devices[a].name, devices[b].name, links[a, b] * _NVLINK.get(devices[a].kind, 25e9), latency=2000)
        for a, b in combinations(range(len(devices)), 2)
        if links.get((a, b))
    ]
    return found + [Link(device.name, "host0", _PCIE, latency=1000) for device in devices]


def _matrix() -> str:
    try:
        return subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
