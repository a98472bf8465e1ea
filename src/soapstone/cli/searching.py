"""`soapstone search` and `compare`: which way is the fastest?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from ..baselines import BASELINES, baseline, is_baseline
from ..errors import SoapstoneError, meant
from ..files import check_writable, unused_path
from ..report import KNOWN_ERROR, Approach, Simplest, simplest_within
from ..searching import INITIAL, SearchResult, check_arguments, exhaustive, interrupts, optcnn, search
from ..simulator import ENGINES, FASTEST, Simulation, fastest_pipeline, least_recomputed, simulate
from ..strategy import Strategy
from . import completion
from .arguments import Case, takes_case
from .common import AsJson, Listing, bold, duration, print_all, print_json, say
from .live import live
from .predict import described, facts, idle_devices, with_strategy
from .profile import measure_space
from .reporting import ReportFile, check_report, write_report

SECONDS, PROOF_SECONDS = 30.0, 600.0
LEAST_SECONDS = 1e-3
Budget = Annotated[float, typer.Option(min=LEAST_SECONDS, help="Seconds that a search may take.")]
Proposals = Annotated[int | None, typer.Option(min=1, help="Proposals that a search may make.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn at random.")]
Chains = Annotated[int, typer.Option(min=1, max=256, help="Chains side by side, each on a thread of its own.")]
Engine = Annotated[
    str, typer.Option(help=f"How proposals are simulated: {', '.join(ENGINES)}; full and delta are the paper's.")
]
MemoryLimit = Annotated[bool, typer.Option(help="Keep to what fits into the devices' memory.")]
Sharding = Annotated[bool, typer.Option(help="Let devices that hold the same weights share them, too.")]
Recompute = Annotated[
    bool, typer.Option(help="Let ops be computed again in backward, where not all that they make fits.")
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        min=1, help="Cut the batch into so many. A search looks for the best number, but with measured costs takes 1."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the strategy here; else to MODEL.TOPOLOGY.json."),
]
Starts = Annotated[
    list[str] | None,
    typer.Option(
        "--start", help="A strategy file to start from, too, such as tune wrote.", autocompletion=completion.strategies
    ),
]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the strategy where -o names no file.")]


@dataclass(frozen=True)
class Wanted:
    """How a user wants to search. Raises SoapstoneError where no search takes it."""

    budget: float = SECONDS
    proposals: int | None = None
    seed: int = 0
    chains: int = 1
    memory_limit: bool = True
    engine: str = FASTEST
    sharding: bool = True
    recompute: bool = True
    microbatches: int | None = None
    starts: tuple[Strategy, ...] = ()

    def __post_init__(self) -> None:
        check_arguments(
            self.budget,
            self.proposals,
            self.seed,
            "soapstone",
            self.chains,
            engine=self.engine,
            microbatches=self.microbatches,
        )

    def initial(self, method: str) -> tuple[str | Strategy, ...] | None:
        """What a search begins with: what suits the method, and the starts that were named; these alone where they cut
        the batch."""
        if not self.starts:
            return None
        return self.starts if any(s.microbatches > 1 for s in self.starts) else (*INITIAL[method], *self.starts)


@dataclass(frozen=True)
class Found:
    """What an approach came to."""

    strategy: Strategy
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def curve(self) -> list[tuple[int, float, float]]:
        """The best so far, up to the end of the search; nothing where it was found otherwise."""
        history = self.facts.get("history", [])
        return [*history, (self.facts["proposals"], self.seconds, history[-1][2])] if history else []


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
            initial=wanted.initial(method),
            memory_limit=wanted.memory_limit,
            sharding=wanted.sharding,
            recompute=wanted.recompute,
            microbatches=wanted.microbatches,
            engine=wanted.engine,
            progress=show,
            training=case.training,
        )
    return _described(result)


def _described(result: SearchResult) -> Found:
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


def _by_optcnn(case: Case, wanted: Wanted, data_parallel: float) -> Found:
    begun = monotonic()
    with live(f"OptCNN for {case.model}", data_parallel, None) as show:
        strategy = optcnn(case.graph, case.topology, budget=wanted.budget, progress=show.share, training=case.training)
    return Found(strategy, monotonic() - begun)


def _by_reinforcement(case: Case, wanted: Wanted, data_parallel: float) -> Found:
    from ..searching.reinforce import reinforce  # which needs torch

    with live(f"Placing {case.model}", data_parallel, wanted.budget) as show:
        result = reinforce(
            case.graph, case.topology, budget=wanted.budget, proposals=wanted.proposals, seed=wanted.seed,
            progress=show, training=case.training,
        )  # fmt: skip
    return _described(result)


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
    more = "" if proof.proved or proof.interrupted else " For a proof, give it more time with --budget."
    remark = (
        f"{what} 10^{proof.log10_size:.1f} strategies: {proof.nodes:,} nodes, {proof.simulated:,} simulated, "
        f"{proof.seconds:.1f} s; the first bound was {proof.root_gap:.1%} below.{more}"
    )
    return Found(proof.strategy, proof.seconds, facts, (remark,), proof.interrupted)


METHODS: dict[str, Callable[[Case, Wanted, float], Found]] = {
    "optcnn": _by_optcnn,
    "paper": lambda case, wanted, data_parallel: _by_chains(case, wanted, data_parallel, "paper"),
    "soapstone": lambda case, wanted, data_parallel: _by_chains(case, wanted, data_parallel, "soapstone"),
    "reinforce": _by_reinforcement,
    "exhaustive": _by_exhaustion,
}
APPROACHES = (*BASELINES, "optcnn", "paper", "soapstone")


@takes_case
def search_command(
    case: Case,
    output: Output = None,
    save: Save = True,
    budget: Annotated[
        float | None,
        typer.Option(
            min=LEAST_SECONDS, help=f"Seconds that it may take: {SECONDS:.0f}, or {PROOF_SECONDS:.0f} for exhaustive."
        ),
    ] = None,
    proposals: Proposals = None,
    seed: Seed = 0,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "soapstone",
    chains: Chains = 1,
    start: Starts = None,
    memory_limit: MemoryLimit = True,
    sharding: Sharding = True,
    recompute: Recompute = True,
    microbatches: Microbatches = None,
    engine: Engine = FASTEST,
    report: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Find a fast strategy, and write it to a file. Ctrl-C ends it with the best so far."""
    if method not in METHODS:
        remedy = meant(method, METHODS, f"use one of {', '.join(METHODS)}")
        raise SoapstoneError(f"there is no method {method!r}; {remedy}")
    if budget is None:
        budget = PROOF_SECONDS if method == "exhaustive" else SECONDS
    only = (("--start", start), ("--engine", engine != FASTEST), ("--microbatches", (microbatches or 1) > 1))
    for option, given in only:
        if given and method not in ("soapstone", "paper"):
            raise SoapstoneError(f"{option} is for searches that walk, not for {method}; leave one of the two out")
    wanted = Wanted(budget, proposals, seed, chains, memory_limit, engine, sharding, recompute, microbatches)
    _check_output(output, save)
    check_report(report)
    wanted = replace(wanted, starts=tuple(case.strategies(*(start or ()))))
    measure_space(case, microbatches or 1)
    before = _simulated(case, BASELINES["data"](case.graph, case.topology))
    with interrupts():
        found = METHODS[method](case, wanted, before.makespan)
        if output is None and save:
            output = unused_path(Path(f"{case.file_name}.json"))
        if output is not None:
            found.strategy.save(output, case.arguments)
        sim = _simulated(case, found.strategy)
        simplest = simplest_within(sim) if case.is_measured and sim.strategy.microbatches == 1 else None
    rows = {"data": (before, 0.0), method: (sim, found.seconds)}
    if report is not None:
        write_report(case, sim, report, name=method, approaches=_approaches(rows), curve=found.curve)
    if as_json:
        speed = {"speed_up": before.makespan / sim.makespan, "search_seconds": found.seconds, **found.facts}
        path = {"path": None if output is None else str(output)}
        print_json({**with_strategy(sim, case), **speed, **_described_simplest(simplest), **path})
        return
    idle = [f"It {text}." for text in [idle_devices(sim)] if text]
    print_all(*_shown(rows, before.makespan), "", *found.remarks, *idle, *_simplest(sim, simplest))
    if output is not None:
        say(f"Written to {output}.")


def _simplest(ours: Simulation, found: Simplest | None) -> list[str]:
    """What to consider instead, where that is predicted to be as fast as far as predictions can tell."""
    if found is None or found.simulation.strategy == ours.strategy:
        return []
    longer = found.simulation.makespan / ours.makespan - 1
    return [
        f"Simplest within the known error of {KNOWN_ERROR:.0%}: {found.name}, "
        f"{duration(found.simulation.makespan)}, {longer:.1%} longer; `soapstone tune` runs both."
    ]


def _described_simplest(found: Simplest | None) -> dict[str, Any]:
    if found is None:
        return {}
    content = {"name": found.name, "makespan": found.simulation.makespan, "taken_back": found.taken_back}
    return {"simplest": {**content, "strategy": found.simulation.strategy.to_data()}, "known_error": KNOWN_ERROR}


def _check_output(output: Path | None, save: bool) -> None:
    """Raise SoapstoneError where the strategy could not be written after all the work."""
    if output is not None:
        if not save:
            raise SoapstoneError("-o says where to write the strategy, and --no-save not to; give one of them")
        check_writable(output)
    elif save:
        try:
            check_writable(".soapstone-strategy")
        except SoapstoneError:
            raise SoapstoneError("this folder cannot be written; name a file with -o, or pass --no-save") from None


@takes_case
def compare(
    case: Case,
    methods: Annotated[str, typer.Option(help="Approaches, with commas between them.")] = ",".join(APPROACHES),
    budget: Budget = 10.0,
    proposals: Proposals = None,
    seed: Seed = 0,
    chains: Chains = 1,
    memory_limit: MemoryLimit = True,
    microbatches: Microbatches = None,
    report: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Put the approaches side by side. Ctrl-C ends the search at hand and leaves out those after it."""
    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    known = (*BASELINES, *METHODS)
    if wrong := [name for name in names or [""] if name not in known and not is_baseline(name)]:
        remedy = meant(wrong[0], known, f"use some of {', '.join(known)}")
        raise SoapstoneError(f"there is no approach {wrong[0]!r}; {remedy}")
    wanted = Wanted(budget, proposals, seed, chains, memory_limit, microbatches=microbatches)
    check_report(report)
    measure_space(case, microbatches or 1)
    data = _simulated(case, BASELINES["data"](case.graph, case.topology))
    rows: dict[str, tuple[Simulation, float]] = {}
    refused: set[str] = set()
    baselines: dict[str, Strategy] = {}
    for name in names:
        try:
            if is_baseline(name):
                sim = _baseline(case, name)
                strategy = sim.strategy
                if same := next((other for other, known in baselines.items() if known == strategy), None):
                    say(f"{name} is {same} here.")
                    refused.add(name)
                    continue
                baselines[name] = strategy
                rows[name] = least_recomputed(sim) if memory_limit else sim, 0.0
                continue
            found = METHODS[name](case, wanted, data.makespan)
        except SoapstoneError as error:
            say(f"Without {name}: {error}.", always=True)
            refused.add(name)
            continue
        except KeyboardInterrupt:
            break
        rows[name] = _simulated(case, found.strategy), found.seconds
        if found.interrupted:
            break
    if not rows:
        raise SoapstoneError("no approach came to a strategy; the lines above say why")
    if missing := [name for name in names if name not in rows and name not in refused]:
        say(f"Without {', '.join(missing)}.")
    if report is not None:
        best = min(rows, key=lambda name: (not rows[name][0].fits, rows[name][0].makespan))
        write_report(case, rows[best][0], report, name=best, approaches=_approaches(rows))
    if as_json:
        shown = {name: {**described(sim), "search_seconds": seconds} for name, (sim, seconds) in rows.items()}
        print_json({name: {**row, "speed_up": data.makespan / row["makespan"]} for name, row in shown.items()})
        return
    idle = [f"{name} {text}." for name, (sim, _) in rows.items() if (text := idle_devices(sim))]
    print_all(*_shown(rows, data.makespan), *([""] * bool(idle)), *idle)


def _baseline(case: Case, name: str) -> Simulation:
    """Of pipelines the fastest."""
    if name == "pipeline":
        return fastest_pipeline(case.graph, case.topology, case.training)
    return _simulated(case, baseline(name, case.graph, case.topology))


def _approaches(rows: dict[str, tuple[Simulation, float]]) -> list[Approach]:
    return [Approach(name, sim, seconds) for name, (sim, seconds) in rows.items()]


def _simulated(case: Case, strategy: Strategy) -> Simulation:
    return simulate(case.graph, case.topology, strategy, training=case.training)


def _shown(rows: dict[str, tuple[Simulation, float]], data_parallel: float) -> list[Listing | str]:
    first = next(iter(rows.values()))[0].throughput
    unit = "samples/s" if first.tokens is None else "tokens/s"
    numbers = ("time", "speed-up", unit, "MFU", "moved", "compute", "exposed", "memory", "search")
    table = Listing(("approach", *numbers), numbers, optional=("compute", "search", "exposed"))
    for name, (sim, seconds) in rows.items():
        took = f"{seconds:.1f} s" if seconds else "-"
        speed = f"{data_parallel / sim.makespan:.2f}x"
        *most, peak = facts(sim)
        rates = sim.throughput
        rate = f"{rates.samples if rates.tokens is None else rates.tokens:,.0f}"
        mfu = "-" if rates.mfu is None else f"{rates.mfu:.1%}"
        fit = peak + "!" * (not sim.fits)
        table.add_row(bold(name), duration(sim.makespan), speed, rate, mfu, *most, fit, took)
    shown: list[Listing | str] = [table]
    if not all(sim.fits for sim, _ in rows.values()):
        shown.append("! does not fit: some device would hold more than its memory.")
    again = [name for name, (sim, _) in rows.items() if any(c.recompute for c in sim.strategy.values())]
    if baselines := [name for name in again if is_baseline(name)]:
        shown.append(f"With the least recomputation that fits: {', '.join(baselines)}.")
    return shown
