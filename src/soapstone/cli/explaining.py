"""`soapstone explain` and `diff`: what a strategy does, why it wins, and what sets two of them apart."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from ..baselines import BASELINES
from ..graph import scaled
from ..report import (
    Comparison,
    Layer,
    closing,
    compared,
    folds_of,
    layers_of,
    placed,
    sooner,
    summary,
    telling,
    titled,
    traffic,
)
from ..simulator import Simulation, simulate
from .arguments import Case, StrategyFile, takes_strategy
from .common import AsJson, Cell, Listing, bold, print_all, print_json
from .live import measuring

FIRST_ROWS, LAST_ROWS = 30, 9
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red", "bright_cyan", "bright_yellow")

Other = Annotated[str, typer.Argument(metavar="OTHER", help=f"{', '.join(BASELINES)}, or a strategy file.")]
Against = Annotated[str, typer.Option(help=f"What to hold it against: {', '.join(BASELINES)}, or a strategy file.")]


@takes_strategy
def explain(case: Case, strategy: StrategyFile, against: Against = "data", as_json: AsJson = False) -> None:
    """Say why a strategy wins, layer by layer. Each number comes from a simulation in which just that choice is taken
    back."""
    comparison = compare_with(case, strategy, against)
    if as_json:
        print_json(described(comparison, against))
        return
    print_all(drawn(comparison.ours), "", *summary(comparison, _called(against)), "", *_choices(comparison))


@takes_strategy
def diff(case: Case, strategy: StrategyFile, other: Other, as_json: AsJson = False) -> None:
    """Say what sets two strategies apart. Each difference is worth some time, bytes and memory."""
    comparison = compare_with(case, strategy, other)
    if as_json:
        print_json(described(comparison, other))
        return
    if not comparison.choices:
        print_all(f"{strategy} and {other} are the same strategy.")
        return
    numbers = ("ours ends", "gradient sums", "activations", "memory")
    words = ("layer", "ours", "the other's")
    table = Listing((*words, *numbers), numbers, wraps=words, optional=("memory", "activations", "gradient sums"))
    graph, topology = case.graph, case.topology
    for choice in comparison.choices:
        op = graph.ops[choice.ops[0]]
        both = (placed(configuration, op, topology) for configuration in (choice.ours, choice.theirs))
        more = (_signed(-size) for size in (choice.gradients, choice.activations, choice.memory))
        table.add_row(bold(titled(choice)), *both, sooner(choice.time), *more)
    rest = f"\n{comparison.others} lesser differences are left out." if comparison.others else ""
    print_all(table, rest, *summary(comparison, _called(other)))


def compare_with(case: Case, strategy: StrategyFile, other: str) -> Comparison:
    """Play both, with a bar."""
    chosen, against = case.strategies(strategy, other)
    ours = simulate(case.graph, case.topology, chosen, training=case.training)
    with measuring("Taking choices back one by one") as show:
        return compared(ours, against, progress=show)


def described(comparison: Comparison, other: str) -> dict[str, Any]:
    """A comparison for machines."""
    ops = comparison.ours.graph.ops
    choices = [
        {
            "layer": choice.title,
            "ops": [ops[i].name for i in choice.ops],
            "ours": {"degrees": dict(choice.ours.degrees), "devices": list(choice.ours.devices)},
            "theirs": {"degrees": dict(choice.theirs.degrees), "devices": list(choice.theirs.devices)},
            "seconds": choice.time * 1e-9,
            "gradient_bytes": choice.gradients,
            "activation_bytes": choice.activations,
            "memory": choice.memory,
        }
        for choice in comparison.choices
    ]
    makespans = {"makespan": comparison.ours.makespan, "other_makespan": comparison.theirs.makespan}
    return {
        **makespans,
        "summary": summary(comparison, _called(other)),
        "choices": choices,
        "others": comparison.others,
    }


def _called(strategy: str) -> str:
    return {"data": "data parallelism", "model": "model parallelism", "expert": "the expert strategy"}.get(
        strategy, strategy
    )


def _signed(size: int) -> str:
    return "-" if size == 0 else f"{'+' if size > 0 else '-'}{scaled(abs(size), 'B')}"


def _choices(comparison: Comparison) -> list[Cell]:
    if not comparison.choices:
        return []
    lines = [
        Text.assemble("  ", (titled(choice), "bold"), f": {traffic(choice, comparison)}: {sooner(choice.time)}")
        for choice in telling(comparison)
    ]
    return ["Each choice, taken back alone:", *lines, *closing(comparison)]


def drawn(sim: Simulation) -> Listing:
    """Layers top to bottom, each cut into its parts, a colour and a number for each device; repeated blocks once."""
    layers = layers_of(sim.strategy)
    folds = folds_of(sim.graph, layers)
    hidden = {i for fold in folds for member in fold.members[1:] for i in member}
    times = {i: len(fold.members) for fold in folds for i in fold.members[0]}
    table = Listing(("layer", "", "parts by device"), wraps=("layer",))
    rows: list[tuple[Cell, ...]] = []
    for i in (i for i in range(len(layers)) if i not in hidden):
        count = times.get(i, 1) * len(layers[i].ops)
        rows.append((layers[i].name, f"x{count}" if count > 1 else "", _blocks(layers[i])))
    left_out = len(rows) - FIRST_ROWS - LAST_ROWS
    if left_out > 1:
        rows[FIRST_ROWS:-LAST_ROWS] = [(f"... and {left_out} more", "", "")]
    for row in rows:
        table.add_row(*row)
    return table


def _blocks(layer: Layer) -> Text:
    """`sample 2 x channel 2  0 1 2 3`"""
    degrees = " x ".join(f"{name} {degree}" for name, degree in layer.configuration.degrees.items()) or "whole"
    devices = layer.configuration.devices
    cells = [(f" {d} ", f"black on {_COLOURS[d % len(_COLOURS)]}") for d in devices[:16]]
    return Text.assemble(*cells, f"{' ...' if len(devices) > 16 else ''}  {degrees}")
