"""How long a kernel takes on a device.

    time = base + (compute^3 + moving^3)^(1/3)
    compute = 2 (sums (terms + depth) + wait units tile) / (share peak)
    moving = (bytes + wait units lane) / (memory bandwidth)

`share` and `memory` are the shares of the peak and of the bandwidth that a large kernel reaches. `depth` is what it
takes to begin and end a sum, in terms, and `wait` the share of a device's units that one tile's or lane's time keeps
from work. All is arithmetic, so arrays of many kernels are as good as one (`benchmarks/fit.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A row of the table, in one precision."""

    base: float  # seconds
    share: float
    memory: float
    depth: float
    wait: float


def kernel_seconds(
    figures: Figures,
    peak: float,
    bandwidth: float,
    units: float,
    moved: float,
    sums: float,
    terms: float,
    tile: float,
    lane: float,
) -> float:
    idle = figures.wait * units
    compute = 2 * (sums * (terms + figures.depth) + idle * tile) / (figures.share * peak)
    moving = (moved + idle * lane) / (figures.memory * bandwidth)
    longer: float = (compute**3 + moving**3) ** (1 / 3)
    return figures.base + longer
