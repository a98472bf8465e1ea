"""`soapstone plot`: how training scales over devices, how searches went, how predictions hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..baselines import BASELINES
from ..errors import SoapstoneError
from ..files import decode, read_json
from ..report.plots import check_picture, plot_curves, plot_predictions, plot_scaling
from ..searching import check_arguments, search
from ..simulator import simulate
from ..strategy import Strategy
from .arguments import Case, read_case, takes_case
from .common import progress, say, takes_volume

Picture = Annotated[Path, typer.Option("-o", "--output", help="The picture: a name that ends in .png or .svg.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="What a command with --json printed.")]
Title = Annotated[str, typer.Option(help="Above the picture.")]

MOST_SECONDS = 1e9

app = typer.Typer(help="Draw plots: scaling over devices, search curves, steps as predicted and measured.")


@app.command("scaling")
@takes_volume
@takes_case
def scaling(
    case: Case,
    output: Picture,
    methods: Annotated[str, typer.Option(help="Approaches, with commas between them.")] = "data,expert,soapstone",
    budget: Annotated[float, typer.Option(help="Seconds for each search.")] = 5.0,
    title: Title = "",
) -> None:
    """Throughput of a device over the number of devices, up to those of the topology (a preset, such as p100:4x4)."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or any(name not in (*BASELINES, "soapstone") for name in names):
        raise SoapstoneError(f"there is no approach {methods!r}; use some of {', '.join(BASELINES)}, soapstone")
    check_arguments(budget, None, 0, "soapstone", 1)
    check_picture(output)
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for topology in _smaller(str(case.arguments["topology"])):
        now = read_case(**{**case.arguments, "topology": topology})
        for name in names:
            with progress(f"{name} on {topology}"):
                sim = simulate(now.graph, now.topology, _strategy(now, name, budget), training=now.training)
            found[name][now.topology.num_devices] = sim.throughput.samples
    plot_scaling(found, title or f"{case.model} on {case.arguments['topology']}", output)
    say(f"Written to {output}.")


def _smaller(text: str) -> list[str]:
    """1, 2, 4, ... devices of one node, then whole nodes."""
    match = re.fullmatch(r"(\w+):(\d+)x(\d+)", text)
    if match is None:
        raise SoapstoneError(f"scaling needs a preset with its size, such as p100:4x4, not {text}")
    preset, nodes, devices = match[1], int(match[2]), int(match[3])
    inside = [f"{preset}:1x{n}" for n in _doubled(devices)]
    return inside + [f"{preset}:{n}x{devices}" for n in _doubled(nodes)[1:]]


def _doubled(most: int) -> list[int]:
    """1, 2, 4 and so on, and the last."""
    return [*(2**i for i in range((most - 1).bit_length())), most]


def _strategy(case: Case, name: str, budget: float) -> Strategy:
    if name in BASELINES:
        return BASELINES[name](case.graph, case.topology)
    return search(case.graph, case.topology, budget=budget, training=case.training).strategy


@app.command("search")
@takes_volume
def curves(files: Files, output: Picture, title: Title = "The best strategy so far") -> None:
    """Search curves, from what `search --json` printed."""
    check_picture(output)
    found = {}
    for path in files:
        history = _read(path, "history", "search --json", tuple[tuple[int, float, float], ...])
        found[path.stem] = [_checked(path, seconds, makespan) for _, seconds, makespan in history]
    plot_curves(found, title, output)
    say(f"Written to {output}.")


@app.command("predictions")
@takes_volume
def predictions(files: Files, output: Picture, title: Title = "Steps as predicted and as measured") -> None:
    """Predicted against measured steps, from what `train --json` printed."""
    check_picture(output)
    rows = []
    for path in files:
        times = (_read(path, name, "train --json", float) for name in ("predicted", "step"))
        rows.append((path.stem, *_checked(path, *times)))
    plot_predictions(rows, title, output)
    say(f"Written to {output}.")


def _read(path: Path, name: str, command: str, kind: Any) -> Any:
    data = read_json(path)
    if not isinstance(data, dict) or not data.get(name):
        raise SoapstoneError(f"{path} has no {name!r}; it must hold what `soapstone {command}` printed")
    return decode(kind, data[name], f"{path}: {name}")


def _checked(path: Path, first: float, second: float) -> tuple[float, float]:
    """Raise SoapstoneError unless both are seconds."""
    if not (0 <= first < MOST_SECONDS and 0 <= second < MOST_SECONDS):
        raise SoapstoneError(f"{path} has {first:g} and {second:g}, which are not seconds; print it anew")
    return first, second
