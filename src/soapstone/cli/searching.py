"""`soapstone search` and `compare`: which way is the fastest?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.table import Table

from ..baselines import BASELINES
from ..errors import SoapstoneError, meant
from ..files import check_writable
from ..searching import SearchResult, check_arguments, exhaustive, interrupts, optcnn, search
from ..simulator import Simulation, simulate
from ..strategy import Strategy
from .arguments import Case, takes_case
from .common import AsJson, milliseconds, print_all, print_json, say
from .live import live
from .predict import described, facts
from .profile import measure_space

Budget = Annotated[float, typer.Option(help="Seconds that a search may take.")]
Proposals = Annotated[int | None, typer.Option(help="Proposals that a search may make.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn at random.")]
Chains = Annotated[int, typer.Option(help="Chains side by side, each on a thread of its own.")]
MemoryLimit = Annotated[bool, typer.Option(help="Keep to what surely fits into the devices' memory.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write the strategy here.")]


@dataclass(frozen=True)
class Wanted:
    """How a user wants to search. Raises SoapstoneError where no search takes it."""

    budget: float = 30.0
    proposals: int | None = None
    seed: int = 0
    chains: int = 1
    memory_limit: bool = True

    def __post_init__(self) -> None:
        check_arguments(self.budget, self.proposals, self.seed, "soapstone", self.chains)


@dataclass(frozen=True)
class Found:
    """What an approach came to."""

    strategy: Strategy
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    interrupted: bool = False


def _by_chains(case: Case, wanted: Wanted, data_parallel: float, method: str) -> Found:
    with live(f"Searching {case.model}", data_parallel, wanted.budget) as show:
        result = search(
            case.graph,
            case.topology,
            method=method,
            budget=wanted.budget,
            proposals=wanted.proposals,
            seed=wanted.seed,
            chains=wanted.chains,
            memory_limit=wanted.memory_limit,
            progress=show,
            training=case.training,
        )
    facts = {
        "proposals": result.proposals,
        "locally_optimal": result.locally_optimal,
        "neighbours": result.neighbours,
        "history": [(step.proposals, step.seconds, step.makespan) for step in result.history],
    }
    return Found(result.strategy, result.seconds, facts, _remarks(result), result.interrupted)


def _remarks(result: SearchResult) -> tuple[str, ...]:
    optimal = {
        "yes": f"No change of one op improves it: {result.neighbours:,} were tried.",
        "no": "A change of one op would improve it.",
        "budget ended": "Whether a change of one op improves it was not seen to the end.",
    }
    rate = result.proposals / max(result.seconds, 1e-9)
    done = f"{result.proposals:,} proposals in {result.seconds:.1f} s, {rate:,.0f}/s."
    stopped = ("Stopped early; this is the best so far.",) if result.interrupted else ()
    return (*stopped, done, optimal[result.locally_optimal])


def _by_optcnn(case: Case, _: Wanted, data_parallel: float) -> Found:
    begun = monotonic()
    with live(f"OptCNN for {case.model}", data_parallel, None) as show:
        strategy = optcnn(case.graph, case.topology, progress=show.share, training=case.training)
    return Found(strategy, monotonic() - begun)


def _by_exhaustion(case: Case, wanted: Wanted, data_parallel: float) -> Found:
    with live(f"All strategies of {case.model}", data_parallel, wanted.budget) as show:
        proof = exhaustive(case.graph, case.topology, budget=wanted.budget, progress=show, training=case.training)
    facts = {
        "proved": proof.proved,
        "nodes": proof.nodes,
        "simulated": proof.simulated,
        "root_gap": proof.root_gap,
        "log10_size": proof.log10_size,
    }
    what = "Proved to be the best of" if proof.proved else "The best seen so far, without a proof, of"
    remark = (
        f"{what} 10^{proof.log10_size:.1f} strategies: {proof.nodes:,} nodes, {proof.simulated:,} simulated, "
        f"{proof.seconds:.1f} s; the first bound was {proof.root_gap:.1%} below."
    )
    return Found(proof.strategy, proof.seconds, facts, (remark,), proof.interrupted)


METHODS: dict[str, Callable[[Case, Wanted, float], Found]] = {
    "optcnn": _by_optcnn,
    "paper": lambda case, wanted, data_parallel: _by_chains(case, wanted, data_parallel, "paper"),
    "soapstone": lambda case, wanted, data_parallel: _by_chains(case, wanted, data_parallel, "soapstone"),
    "exhaustive": _by_exhaustion,
}
APPROACHES = (*BASELINES, "optcnn", "paper", "soapstone")


@takes_case
def search_command(
    case: Case,
    output: Output = None,
    budget: Budget = 30.0,
    proposals: Proposals = None,
    seed: Seed = 0,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "soapstone",
    chains: Chains = 1,
    memory_limit: MemoryLimit = True,
    as_json: AsJson = False,
) -> None:
    """Find a fast strategy. Ctrl-C ends it with the best so far."""
    if method not in METHODS:
        remedy = meant(method, METHODS, f"use one of {', '.join(METHODS)}")
        raise SoapstoneError(f"there is no method {method!r}; {remedy}")
    if output is not None:
        check_writable(output)
    wanted = Wanted(budget, proposals, seed, chains, memory_limit)
    measure_space(case)
    before = _simulated(case, BASELINES["data"](case.graph, case.topology))
    with interrupts():
        found = METHODS[method](case, wanted, before.makespan)
        if output is not None:
            found.strategy.save(output, case.arguments)
        sim = _simulated(case, found.strategy)
    if as_json:
        speed = {"speed_up": before.makespan / sim.makespan, "search_seconds": found.seconds, **found.facts}
        print_json({**described(sim), **speed})
        return
    rows = {"data": (before, 0.0), method: (sim, found.seconds)}
    print_all(*_shown(rows, before.makespan), "", *found.remarks)
    if output is not None:
        say(f"Written to {output}.")


@takes_case
def compare(
    case: Case,
    methods: Annotated[str, typer.Option(help="Approaches, with commas between them.")] = ",".join(APPROACHES),
    budget: Budget = 10.0,
    proposals: Proposals = None,
    seed: Seed = 0,
    chains: Chains = 1,
    memory_limit: MemoryLimit = True,
    as_json: AsJson = False,
) -> None:
    """Put the approaches side by side. Ctrl-C ends the search at hand and leaves out those after it."""
    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    known = (*BASELINES, *METHODS)
    if wrong := [name for name in names or [""] if name not in known]:
        remedy = meant(wrong[0], known, f"use some of {', '.join(known)}")
        raise SoapstoneError(f"there is no approach {wrong[0]!r}; {remedy}")
    wanted = Wanted(budget, proposals, seed, chains, memory_limit)
    measure_space(case)
    data = _simulated(case, BASELINES["data"](case.graph, case.topology))
    rows: dict[str, tuple[Simulation, float]] = {}
    for name in names:
        try:
            if name in BASELINES:
                rows[name] = _simulated(case, BASELINES[name](case.graph, case.topology)), 0.0
                continue
            found = METHODS[name](case, wanted, data.makespan)
        except SoapstoneError as error:
            say(f"{name}: {error}")
            continue
        except KeyboardInterrupt:
            break
        rows[name] = _simulated(case, found.strategy), found.seconds
        if found.interrupted:
            break
    if not rows:
        raise SoapstoneError("no approach came to a strategy; the lines above say why")
    if missing := [name for name in names if name not in rows]:
        say(f"Without {', '.join(missing)}.")
    if as_json:
        shown = {name: {**described(sim), "search_seconds": seconds} for name, (sim, seconds) in rows.items()}
        print_json({name: {**row, "speed_up": data.makespan / row["makespan"]} for name, row in shown.items()})
        return
    print_all(*_shown(rows, data.makespan))


def _simulated(case: Case, strategy: Strategy) -> Simulation:
    return simulate(case.graph, case.topology, strategy, training=case.training)


def _shown(rows: dict[str, tuple[Simulation, float]], data_parallel: float) -> list[Table | str]:
    table = Table("approach", "time", "speed-up", "moved", "compute", "exposed", "peak memory", "search", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (sim, seconds) in rows.items():
        took = f"{seconds:.1f} s" if seconds else "-"
        speed = f"{data_parallel / sim.makespan:.2f}x"
        *most, peak = facts(sim)
        table.add_row(f"[bold]{name}", milliseconds(sim.makespan), speed, *most, peak + "!" * _may_not_fit(sim), took)
    doubt = any(_may_not_fit(sim) for sim, _ in rows.values())
    return [table, "! may not fit: some device's memory is below the upper bound."] if doubt else [table]


def _may_not_fit(sim: Simulation) -> bool:
    return any(bound > device.memory for bound, device in zip(sim.memory.bound, sim.topology.devices))
