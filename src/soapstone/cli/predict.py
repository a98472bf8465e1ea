"""`soapstone topologies`, `simulate` and `compare`: how long would this take on that cluster?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..baselines import BASELINES
from ..errors import SoapstoneError
from ..graph import OperatorGraph, scaled
from ..report import save_trace
from ..simulator import Simulation, simulate
from ..strategy import Strategy
from ..topology import Topology, about_presets
from .common import (
    AsJson,
    Batch,
    BatchNorm,
    BatchPerDevice,
    Chunk,
    Dtype,
    Fresh,
    ModelName,
    Sizes,
    graph_of,
    print_all,
    print_json,
    say,
)

TopologyName = Annotated[
    str,
    typer.Option("-t", "--topology", help="A preset such as p100:4x4, several joined by +, a YAML file, or here."),
]
StrategyName = Annotated[str, typer.Option("-s", "--strategy", help=f"{', '.join(BASELINES)}, or a strategy file.")]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
BucketBytes = Annotated[int, typer.Option(help="Join gradients with the same holders up to this size; 0: one by one.")]


def topologies(as_json: AsJson = False) -> None:
    """List the clusters that are built in."""
    if as_json:
        print_json([{"name": name, "about": about} for name, about in about_presets().items()])
        return
    table = Table("preset", "what", box=None)
    for name, about in about_presets().items():
        table.add_row(f"[bold]{name}", about)
    print_all(
        table, "\nUse one as NAME:NODESxDEVICES, such as p100:4x4; join several with +, such as h100:1x4+a100:1x8."
    )


def simulate_command(
    model: ModelName,
    topology: TopologyName,
    strategy: StrategyName = "data",
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adam",
    bucket_bytes: BucketBytes = 0,
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    trace: Annotated[Path | None, typer.Option(help="Write the timeline here, for ui.perfetto.dev.")] = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Predict one training iteration of a model on a cluster: time, bytes, memory."""
    machines = topology_of(topology)
    graph = graph_of(
        model, batch, sizes, chunk, batch_norm, fresh, dtype=dtype, per_device=batch_per_device, devices=machines
    )
    chosen = strategy_of(strategy, graph, machines)
    sim = simulate(graph, machines, chosen, optimizer=optimizer, bucket_bytes=bucket_bytes)
    if trace is not None:
        save_trace(sim, trace)
    for note in chosen.notes:
        say(note)
    print_json(described(sim)) if as_json else print_all(*_shown(sim))


def compare(
    model: ModelName,
    topology: TopologyName,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adam",
    bucket_bytes: BucketBytes = 0,
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Put the approaches side by side."""
    machines = topology_of(topology)
    graph = graph_of(
        model, batch, sizes, chunk, batch_norm, fresh, dtype=dtype, per_device=batch_per_device, devices=machines
    )
    found = {
        name: simulate(graph, machines, make(graph, machines), optimizer=optimizer, bucket_bytes=bucket_bytes)
        for name, make in BASELINES.items()
    }
    if as_json:
        print_json({name: described(sim) for name, sim in found.items()})
        return
    table = Table("approach", "time", "speed-up", "moved", "compute", "exposed", "peak memory", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, sim in found.items():
        speed = found["data"].makespan / sim.makespan
        table.add_row(f"[bold]{name}", _ms(sim.makespan), f"{speed:.2f}x", *_facts(sim))
    print_all(table)


def topology_of(name: str) -> Topology:
    """The topology that a user names. Raises TopologyError."""
    if name == "here":
        return Topology.detect()
    return Topology.load(name) if name.endswith((".yaml", ".yml")) else Topology.parse(name)


def strategy_of(name: str, graph: OperatorGraph, topology: Topology) -> Strategy:
    """A baseline, or the strategy in a file. Raises StrategyError."""
    if name in BASELINES:
        return BASELINES[name](graph, topology)
    if not Path(name).exists():
        raise SoapstoneError(f"there is no strategy {name!r}; use {', '.join(BASELINES)}, or a strategy file")
    return Strategy.load(name, graph, topology)


def described(sim: Simulation) -> dict[str, Any]:
    """A simulation for machines."""
    memory = {name: [int(n) for n in values] for name, values in asdict(sim.memory).items()}
    return {
        "makespan": sim.makespan,
        "bytes_moved": sim.bytes_moved,
        "compute_time": sim.compute_time,
        "exposed_communication": sim.exposed_communication,
        "tasks": len(sim.tasks),
        "critical_path": len(sim.critical_path),
        "peak_memory": sim.peak_memory,
        "memory": {**memory, "bound": [int(n) for n in sim.memory.bound]},
        "busy": sim.busy,
    }


def _facts(sim: Simulation) -> list[str]:
    peak = scaled(max(sim.peak_memory), "B")
    return [scaled(sim.bytes_moved, "B"), _ms(sim.compute_time), _ms(sim.exposed_communication), peak]


def _shown(sim: Simulation) -> list[Table | str]:
    table = Table("device", "kind", "busy", "peak memory", "saved", "bound", "has", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    memory = sim.memory
    rows: dict[tuple[str, ...], list[str]] = {}
    for i, device in enumerate(sim.topology.devices):
        held = [scaled(float(n[i]), "B") for n in (memory.peak, memory.saved, memory.bound)]
        over = "[red]" if memory.bound[i] > device.memory else ""
        facts = (device.kind, f"{sim.busy[device.name]:.0%}", *held[:2], f"{over}{held[2]}", scaled(device.memory, "B"))
        rows.setdefault(facts, []).append(device.name)
    for facts, names in rows.items():  # equal devices are one row
        table.add_row(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", *facts)
    links = {name: share for name, share in sim.busy.items() if "→" in name or "↔" in name}
    busiest = sorted(links, key=lambda name: -links[name])[:5]
    moved, compute, exposed, _ = _facts(sim)
    lines = [
        f"\n[bold]{_ms(sim.makespan)}[/] an iteration: {compute} of compute over all devices, {moved} moved, "
        f"{exposed} of it exposed on the critical path of {len(sim.critical_path)} of {len(sim.tasks)} tasks.",
    ]
    if busiest:
        lines.append("Busiest links: " + ", ".join(f"{name} {links[name]:.0%}" for name in busiest) + ".")
    return [table, *lines]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
