"""`soapstone profile`: how long do this model's ops take here?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any

import typer

from ..costs import AnalyticCosts, Costs, OpTimes, device_kinds
from ..graph import Op, scaled
from ..searching import Problem
from ..searching.interrupts import interrupts
from ..topology import neighbours_of
from . import completion
from .arguments import Case, read_case, topology_of
from .common import (
    AsJson,
    Batch,
    BatchNorm,
    BatchPerDevice,
    Chunk,
    Fresh,
    Listing,
    ModelName,
    Precision,
    Sizes,
    print_all,
    print_json,
    say,
)
from .live import measuring

SHOWN = 12  # rows
Device = Annotated[str, typer.Option(help="cpu, with one thread, or cuda.")]
Where = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        help="Whose splits are measured; else cpu:1x2, or the GPUs here.",
        autocompletion=completion.topologies,
    ),
]
Again = Annotated[bool, typer.Option("--again", help="Measure anew what was measured before.")]


def profile(
    model: ModelName,
    device: Device = "cpu",
    topology: Where = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    precision: Precision = "float32",
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    fresh: Fresh = False,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Measure every part that a search on a topology may ask for. Ctrl-C keeps what is measured so far."""
    from ..costs.measured import MeasuredCosts  # loads torch

    where = topology or ("cpu:1x2" if device == "cpu" else "here")
    beside = neighbours_of(topology_of(where)) if device == "cpu" else 0
    costs = MeasuredCosts(device, beside=beside, again=again)
    options: dict[str, Any] = {"sizes": sizes, "chunk": chunk, "batch_norm": batch_norm, "fresh": fresh}
    case = read_case(model, where, batch, batch_per_device, precision, **options)
    begun = monotonic()
    try:
        measure_space(replace(case, training=replace(case.training, costs=costs)))
    except KeyboardInterrupt:
        say(f"Stopped; {costs.num_measured:,} times are measured and kept, and the next profile goes on from there.")
        raise typer.Exit(130) from None
    seconds = monotonic() - begun
    rows = _rows(case, costs)
    if as_json:
        counts = {"measured": costs.num_measured, "remembered": costs.num_remembered, "seconds": seconds}
        print_json({"device": costs.machine.name, **counts, "ops": [_described(*row) for row in rows]})
        return
    summary = f"{costs.num_measured:,} measured in {seconds:.1f} s, {costs.num_remembered:,} remembered."
    print_all(_table(rows[:SHOWN]), f"\n{costs.machine.name}: {summary}")


def measure_space(case: Case, microbatches: int = 1) -> None:
    """Have costs that are measured ready for a search. Ctrl-C ends it between two rounds of measurements: raised just
    anywhere, KeyboardInterrupt was lost now and then."""
    if not case.is_measured:
        return
    with interrupts(lambda: None) as interrupt, measuring(f"Measuring the parts of {case.model}") as progress:

        def report(share: float) -> None:
            if interrupt.happened:
                raise KeyboardInterrupt
            progress(share)

        Problem(case.graph, case.topology, progress=report, training=case.training, microbatches=microbatches)
    if interrupt.happened:
        raise KeyboardInterrupt


Row = tuple[Op, int, OpTimes, OpTimes | None]  # how many such ops there are, measured and analytic times


def _rows(case: Case, costs: Costs) -> list[Row]:
    """Each distinct op, whole, the slowest first."""
    graph, kind = case.graph, case.topology.devices[0].kind
    counts = Counter(map(graph.signature, range(len(graph.ops))))
    first = {graph.signature(index): index for index in reversed(range(len(graph.ops)))}
    rows = []
    for signature, index in first.items():
        whole = tuple(dim.size for dim in graph.ops[index].dims)
        measured = costs.times(graph, index, whole, kind, False)
        analytic = AnalyticCosts().times(graph, index, whole, kind, False) if kind in device_kinds() else None
        rows.append((graph.ops[index], counts[signature], measured, analytic))
    return sorted(rows, key=lambda row: -row[1] * _both(row[2]))


def _both(times: OpTimes) -> int:
    return times.forward + times.backward


def _described(op: Op, count: int, measured: OpTimes, analytic: OpTimes | None) -> dict[str, Any]:
    return {
        "name": op.name,
        "kind": op.kind,
        "count": count,
        "forward": measured.forward * 1e-9,
        "backward": measured.backward * 1e-9,
        "analytic_forward": analytic.forward * 1e-9 if analytic else None,
        "analytic_backward": analytic.backward * 1e-9 if analytic else None,
        "flops_per_second": op.flops / measured.forward * 1e9,
    }


def _table(rows: list[Row]) -> Listing:
    numbers = ("forward", "backward", "reaches", "analytic", "measured/analytic")
    table = Listing(("op", "ops", "kind", *numbers), ("ops", *numbers), optional=("analytic", "kind", "reaches"))
    for op, count, measured, analytic in rows:
        table.add_row(
            op.name,
            str(count),
            op.kind,
            _time(measured.forward),
            _time(measured.backward),
            scaled(op.flops / measured.forward * 1e9, "flop/s"),
            f"{_time(analytic.forward)} + {_time(analytic.backward)}" if analytic else "-",
            f"{_both(measured) / _both(analytic):.2f}" if analytic else "-",
        )
    return table


def _time(ns: int) -> str:
    return f"{ns / 1e6:,.2f} ms" if ns >= 1e6 else f"{ns / 1e3:,.1f} us"
