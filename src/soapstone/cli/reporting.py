"""`soapstone report`, and the reports that other commands write: one HTML file that shows all that is known."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..files import check_writable
from ..graph import scaled
from ..report import Approach, Happening, Report, compared, payload_of, write_page
from ..simulator import Simulation, counted, simulate
from .arguments import Case, StrategyFile, takes_strategy
from .common import AsJson, print_json, say
from .live import measuring

ReportFile = Annotated[Path | None, typer.Option("--report", help="Write all that is known here, as an HTML page.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The page, an HTML file.")]


@takes_strategy
def report(case: Case, strategy: StrategyFile, output: Output = Path("report.html"), as_json: AsJson = False) -> None:
    """Show a strategy as an HTML page. It draws how every layer is split and one step moment by moment, says why it
    wins, and what fills the memory."""
    check_writable(output)
    sim = simulate(case.graph, case.topology, case.strategy(strategy), training=case.training)
    write_report(case, sim, output, name=strategy)
    if as_json:
        print_json({"path": str(output), "makespan": sim.makespan})


def check_report(path: Path | None) -> None:
    """Raise SoapstoneError where a report could not be written, before the work that it is about."""
    if path is not None:
        check_writable(path)


def write_report(
    case: Case,
    sim: Simulation,
    path: Path,
    *,
    name: str,
    approaches: Sequence[Approach] = (),
    curve: Sequence[tuple[int, float, float]] = (),
    happenings: Sequence[Happening] = (),
) -> None:
    """The page of a strategy that was played, held against data parallelism."""
    with measuring("Taking choices back one by one") as show:
        comparison = compared(sim, case.strategy("data"), progress=show)
    rows = approaches or [Approach("data", comparison.theirs), Approach(name, sim)]
    title = f"{case.model} on {case.where}"
    known = Report(title, sim, comparison, name, _setting(case), _figures(sim), rows, curve, happenings)
    write_page(payload_of(known), path)
    say(f"Report written to {path}: open it in a browser.")


def _figures(sim: Simulation) -> list[tuple[str, str]]:
    rates = sim.throughput
    known = {
        "samples a second": f"{rates.samples:,.0f}",
        "tokens a second": "" if rates.tokens is None else f"{rates.tokens:,.0f}",
        "MFU": "" if rates.mfu is None else f"{rates.mfu:.1%}",
    }
    return [
        *((name, value) for name, value in known.items() if value),
        ("moved", scaled(sim.bytes_moved, "B")),
        ("fullest device", scaled(max(sim.peak_memory), "B")),
        ("tasks", f"{len(sim.tasks):,}"),
    ]


def _setting(case: Case) -> list[tuple[str, str]]:
    """What was asked for, and what was taken where nobody asked."""
    given = {name: str(value) for name, value in case.arguments.items() if value not in (None, "", [])}
    given["batch"] = f"{counted(case.graph)[0]} in all"
    given["bucket_bytes"] = scaled(case.training.bucket_bytes_on(case.topology), "B")
    names = {"bucket_bytes": "gradient buckets", "batch_norm": "batch norm", "batch_per_device": "batch per device"}
    rows = [(names.get(name, name), value) for name, value in given.items()]
    return [*rows, ("command", shlex.join(["soapstone", *sys.argv[1:]]))]
