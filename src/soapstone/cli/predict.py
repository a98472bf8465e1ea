"""`soapstone topologies` and `simulate`: how long would this take on that cluster?"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..graph import scaled
from ..report import save_trace
from ..simulator import Simulation, simulate
from ..topology import about_presets
from .arguments import Case, StrategyName, takes_case
from .common import AsJson, milliseconds, print_all, print_json, progress, say


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


@takes_case
def simulate_command(
    case: Case,
    strategy: StrategyName = "data",
    trace: Annotated[Path | None, typer.Option(help="Write the timeline here, for ui.perfetto.dev.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict one training iteration of a model on a cluster: time, bytes, memory."""
    chosen = case.strategy(strategy)
    with progress(f"Measuring what {case.model} needs") if case.is_measured else nullcontext():
        sim = simulate(case.graph, case.topology, chosen, training=case.training)
    if trace is not None:
        save_trace(sim, trace)
    for note in chosen.notes:
        say(note)
    print_json(described(sim)) if as_json else print_all(*_shown(sim))


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


def facts(sim: Simulation) -> list[str]:
    """Bytes moved, compute time, exposed communication and peak memory, in words."""
    peak = scaled(max(sim.peak_memory), "B")
    moved, compute = scaled(sim.bytes_moved, "B"), milliseconds(sim.compute_time)
    return [moved, compute, milliseconds(sim.exposed_communication), peak]


def _shown(sim: Simulation) -> list[Table | str]:
    table = Table("device", "kind", "busy", "peak memory", "saved", "bound", "has", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    memory = sim.memory
    rows: dict[tuple[str, ...], list[str]] = {}
    for i, device in enumerate(sim.topology.devices):
        held = [scaled(float(n[i]), "B") for n in (memory.peak, memory.saved, memory.bound)]
        over = "[red]" if memory.bound[i] > device.memory else ""
        row = (device.kind, f"{sim.busy[device.name]:.0%}", *held[:2], f"{over}{held[2]}", scaled(device.memory, "B"))
        rows.setdefault(row, []).append(device.name)
    for row, names in rows.items():  # equal devices are one row
        table.add_row(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", *row)
    links = {name: share for name, share in sim.busy.items() if "→" in name or "↔" in name}
    busiest = sorted(links, key=lambda name: -links[name])[:5]
    moved, compute, exposed, _ = facts(sim)
    lines = [
        f"\n[bold]{milliseconds(sim.makespan)}[/] an iteration: {compute} of compute over all devices, {moved} moved, "
        f"{exposed} of it exposed on the critical path of {len(sim.critical_path)} of {len(sim.tasks)} tasks.",
    ]
    if busiest:
        lines.append("Busiest links: " + ", ".join(f"{name} {links[name]:.0%}" for name in busiest) + ".")
    return [table, *lines]
