"""`soapstone topologies` and `simulate`: how long would this take on that cluster?"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ..files import check_writable
from ..graph import scaled
from ..report import save_trace
from ..simulator import Simulation, Throughput, simulate
from ..topology import about_presets
from .arguments import Case, StrategyName, takes_case
from .common import AsJson, Cell, Listing, bold, duration, milliseconds, print_all, print_json, progress
from .reporting import ReportFile, check_report, write_report

LAYERS = 4  # that are named
HALVES = {"bfloat16", "float16"}


def topologies(as_json: AsJson = False) -> None:
    """List the clusters that are built in."""
    if as_json:
        print_json([{"name": name, "about": about} for name, about in about_presets().items()])
        return
    table = Listing(("preset", "what"), wraps=("what",))
    for name, about in about_presets().items():
        table.add_row(bold(name), about)
    print_all(
        table, "\nUse one as NAME:NODESxDEVICES, such as p100:4x4; join several with +, such as h100:1x4+a100:1x8."
    )


@takes_case
def simulate_command(
    case: Case,
    strategy: StrategyName = "data",
    trace: Annotated[Path | None, typer.Option(help="Write the timeline here, for ui.perfetto.dev.")] = None,
    report: ReportFile = None,
    must_fit: Annotated[
        bool, typer.Option("--must-fit", help="Exit with 1 where a device's memory does not do.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict one training iteration. It prints time, throughput, bytes moved and memory of a model on a cluster."""
    check_report(report)
    if trace is not None:
        check_writable(trace)
    chosen = case.strategy(strategy)
    with progress(f"Measuring what {case.model} needs") if case.is_measured else nullcontext():
        sim = simulate(case.graph, case.topology, chosen, training=case.training)
    if trace is not None:
        save_trace(sim, trace)
    if report is not None:
        write_report(case, sim, report, name=strategy)
    print_json(with_strategy(sim, case)) if as_json else print_all(*_shown(sim))
    if must_fit and not sim.fits:
        raise typer.Exit(1)


def described(sim: Simulation) -> dict[str, Any]:
    """A simulation for machines."""
    memory = {name: [int(n) for n in values] for name, values in asdict(sim.memory).items()}
    return {
        "makespan": sim.makespan,
        **described_rates(sim.throughput),
        "devices": sim.topology.num_devices,
        "devices_used": len(sim.strategy.devices),
        "bytes_moved": sim.bytes_moved,
        "compute_time": sim.compute_time,
        "exposed_communication": sim.exposed_communication,
        "tasks": len(sim.tasks),
        "critical_path": len(sim.critical_path),
        "peak_memory": sim.peak_memory,
        "memory": memory,
        "fits": sim.fits,
        "fullest": _described_filling(sim),
        "busy": sim.busy,
    }


def _described_filling(sim: Simulation) -> dict[str, Any]:
    full = sim.fullest
    return {"device": sim.topology.devices[full.device].name, "kinds": full.kinds, "layers": by_layer(sim)}


def by_layer(sim: Simulation) -> dict[str, int]:
    """Bytes of activations, gradients and work on the fullest device at its peak, by op, the largest first."""
    return {sim.graph.ops[op].name: size for op, size in sim.fullest.ops.items()}


def with_strategy(sim: Simulation, case: Case) -> dict[str, Any]:
    """A simulation for machines, and what a strategy file would hold."""
    return {**described(sim), "strategy": sim.strategy.to_data(case.arguments)}


def described_rates(rates: Throughput) -> dict[str, Any]:
    return {"samples_per_second": rates.samples, "tokens_per_second": rates.tokens, "mfu": rates.mfu}


def idle_devices(sim: Simulation) -> str:
    """How many devices a strategy uses, where it does not use all; else nothing."""
    used, there = len(sim.strategy.devices), sim.topology.num_devices
    return f"uses {used} of {there} devices" if used < there else ""


def facts(sim: Simulation) -> list[str]:
    """Bytes moved, compute time, exposed communication and peak memory, in words."""
    peak = scaled(max(sim.peak_memory), "B")
    moved, compute = scaled(sim.bytes_moved, "B"), milliseconds(sim.compute_time)
    return [moved, compute, milliseconds(sim.exposed_communication), peak]


def _shown(sim: Simulation) -> list[Listing | Cell]:
    numbers = ("busy", "peak memory", "saved", "bound", "has")
    table = Listing(("device", "kind", *numbers), numbers, optional=("saved",))
    memory = sim.memory
    rows: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for i, device in enumerate(sim.topology.devices):
        held = [scaled(float(n[i]), "B") for n in (memory.peak, memory.saved, memory.bound)]
        row = (device.kind, f"{sim.busy[device.name]:.0%}", *held, scaled(device.memory, "B"))
        rows.setdefault((bool(memory.peak[i] > device.memory), row), []).append(device.name)
    for (over, (kind, busy, peak, *rest)), names in rows.items():  # equal devices are one row
        name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        table.add_row(name, kind, busy, Text(peak, style="red" if over else ""), *rest)
    links = {name: share for name, share in sim.busy.items() if "→" in name or "↔" in name}
    busiest = sorted(links, key=lambda name: -links[name])[:5]
    moved, compute, exposed, _ = facts(sim)
    lines: list[Cell] = [
        Text.assemble(
            "\n",
            (duration(sim.makespan), "bold"),
            f" an iteration: {compute} of compute over all devices, {moved} moved. Of the iteration, {exposed} is "
            f"exposed communication, on the critical path of {len(sim.critical_path)} of {len(sim.tasks)} tasks.",
        )
    ]
    lines.append(f"{sim.throughput}.")
    if idle := idle_devices(sim):
        lines.append(f"The strategy {idle}.")
    if busiest:
        lines.append("Busiest links: " + ", ".join(f"{name} {links[name]:.0%}" for name in busiest) + ".")
    return [table, *lines, *_filled(sim)]


def _filled(sim: Simulation) -> list[Cell]:
    """What fills the fullest device, by kind and by layer; last of all, what does not fit."""
    full = sim.fullest
    name = sim.topology.devices[full.device].name
    kinds = ", ".join(f"{kind} {scaled(size, 'B')}" for kind, size in full.kinds.items())
    most = ", ".join(f"{layer} {scaled(size, 'B')}" for layer, size in list(by_layer(sim).items())[:LAYERS])
    lines: list[Cell] = [f"{name} is the fullest, with {scaled(full.peak, 'B')}: {kinds}."]
    if most:
        lines.append(f"Most of it by layer, without parameters and states: {most}.")
    types = {parameter.dtype for parameter in sim.graph.parameters}
    if types and types <= HALVES:
        lines.append(
            f"Parameters, gradients and optimizer state are {max(types)}, too; with --precision mixed or autocast they "
            "stay float32."
        )
    over = [(int(p) - d.memory, d) for p, d in zip(sim.memory.peak, sim.topology.devices) if p > d.memory]
    if over:
        worst, device = max(over, key=lambda pair: pair[0])
        lines.append(
            Text.assemble(
                ("It does not fit", "red"),
                f": {len(over)} of {sim.topology.num_devices} devices would hold more than their memory; {device.name} "
                f"{scaled(worst, 'B')} more than its {scaled(device.memory, 'B')}.",
            )
        )
    return lines
