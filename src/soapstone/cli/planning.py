"""`soapstone plan`: what a rank does under a strategy."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import RankError
from ..graph import scaled
from ..simulator import simulate
from .arguments import Case, StrategyName, takes_case
from .common import AsJson, Listing, bold, duration, milliseconds, print_all, print_json

MOST_EVENTS = 200

RankNumber = Annotated[int, typer.Option("--rank", help="Whose program.")]


@takes_case
def plan_command(
    case: Case,
    strategy: StrategyName = "data",
    rank: RankNumber = 0,
    everything: Annotated[bool, typer.Option("--all", help=f"Not only the first {MOST_EVENTS} events.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one rank's program. It lists the segments that it runs, and what it says to whom, in order."""
    from ..runtime.listing import lines
    from ..runtime.plan import Plan

    if not 0 <= rank < case.topology.num_devices:
        raise RankError(f"there is no rank {rank}; {case.topology.num_devices} devices have ranks 0 and up")
    sim = simulate(case.graph, case.topology, case.strategy(strategy), training=case.training)
    program = list(lines(Plan(sim, sim.order, case.topology.num_devices), rank))
    if as_json:
        names = ("kind", "what", "peers", "bytes", "start")
        print_json([{name: getattr(line, name) for name in names} for line in program])
        return
    headers = ("", "event", "what", "with rank", "bytes", "predicted start")
    table = Listing(headers, ("", "bytes", "predicted start"), wraps=("what", "with rank"))
    for number, line in enumerate(program if everything else program[:MOST_EVENTS]):
        size, start = (
            scaled(line.bytes, "B") if line.bytes else "",
            "" if line.start is None else milliseconds(line.start),
        )
        table.add_row(str(number), bold(line.kind), line.what, ", ".join(map(str, line.peers)), size, start)
    runs = sum(line.kind in ("forward", "backward") for line in program)
    more = f" Add --all for the other {len(program) - MOST_EVENTS}." if len(program) > len(table.rows) else ""
    found = f"{runs} segments and {len(program) - runs} messages, {duration(sim.makespan)} predicted"
    print_all(table, f"\nRank {rank}: {found}.{more}")
