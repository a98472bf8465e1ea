"""How long it takes to ask how long it would take: NMT on 64 K80s, from the command line and in the space."""

from __future__ import annotations

import os
import tempfile
import time

from rich.console import Console

import soapstone as ss

from .breadth import command

WORDS = ("-m", "soapstone", "simulate", "nmt", "-t", "k80:16x4", "-s", "data")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOAPSTONE_CACHE"] = folder
        command(*WORDS)  # fills the cache
        times = sorted(command(*WORDS) for _ in range(5))
    graph, topology = ss.capture(ss.zoo.load("nmt")), ss.Topology.parse("k80:16x4")
    start = time.perf_counter()
    space = ss.Space(graph, topology)
    size = space.log10_size
    seconds = time.perf_counter() - start
    most = max(len(space.configurations(op.name)) for op in graph.ops)
    console = Console(width=120, highlight=False)
    console.print(f"soapstone {' '.join(WORDS[2:])}: {times[0]:.2f} to {times[-1]:.2f} s in all, from a warm cache")
    console.print(f"space of NMT on 64 devices: {seconds:.2f} s, 10^{size:.0f} strategies, at most {most} an op")
