"""`soapstone plan` and `train`: what a rank does under a strategy, and doing it. `train` runs under torchrun."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RankError, SoapstoneError
from ..files import check_writable
from ..graph import scaled
from ..loading import load_workload
from ..report import save_events
from ..simulator import Throughput, simulate, throughput
from ..strategy import Strategy
from ..topology import Topology, is_kind, kind_of
from .arguments import Case, StrategyName, costs_of, takes_case
from .common import AsJson, Listing, duration, milliseconds, print_all, print_json, say
from .predict import described_rates
from .reporting import ReportFile, check_report, write_report

if TYPE_CHECKING:
    import torch

    from ..runtime import Parallel, Transport
    from ..runtime.records import Happening, Record
    from ..simulator import Simulation
    from ..tracing import Workload

WARM = 3  # steps that do not count: the first ones record what the others repeat
MOST_EVENTS = 200
FAR_OFF = 1.5  # times

RankNumber = Annotated[int, typer.Option("--rank", help="Whose program.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps to time, after a few to warm up.")]
LearningRate = Annotated[float, typer.Option("--lr", help="The optimizer's learning rate.")]
Check = Annotated[bool, typer.Option("--check", help="Compare losses and weights with one device first.")]
Trace = Annotated[Path | None, typer.Option(help="Write the last step's real timeline here, for ui.perfetto.dev.")]
Dropout = Annotated[str, typer.Option(help="counter: masks by seed, step and element; replay: torch's own masks.")]
Compile = Annotated[bool, typer.Option("--compile", help="Run segments through torch.compile.")]
Graphs = Annotated[bool, typer.Option("--cuda-graphs", help="Launch each segment as one CUDA graph.")]
Seed = Annotated[int, typer.Option(help="Of the first weights, and of dropout.")]
SaveFolder = Annotated[
    Path | None, typer.Option("--save", metavar="FOLDER", help="Write checkpoints here, which all ranks must share.")
]
Every = Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints; without, one at the end.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, where there is one.")]


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
        table.add_row(str(number), f"[bold]{line.kind}", line.what, ", ".join(map(str, line.peers)), size, start)
    runs = sum(line.kind in ("forward", "backward") for line in program)
    more = f" Add --all for the other {len(program) - MOST_EVENTS}." if len(program) > len(table.rows) else ""
    found = f"{runs} segments and {len(program) - runs} messages, {duration(sim.makespan)} predicted"
    print_all(table, f"\nRank {rank}: {found}.{more}")


@dataclass(frozen=True)
class Run:
    """How the user wants to train."""

    steps: int
    lr: float
    seed: int
    dropout: str
    optimizer: str
    compiled: bool
    graphed: bool
    save: Path | None = None
    every: int | None = None
    keep: int = 2
    resume: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.lr < float("inf"):
            raise SoapstoneError(f"--lr {self.lr} is no learning rate; use a number above 0")
        if not -(2**63) <= self.seed < 2**63:
            raise SoapstoneError(f"--seed {self.seed} has more than 64 bits; use a smaller one")
        if self.save is None and (self.resume or self.every is not None):
            raise SoapstoneError("--resume and --every need the folder of the checkpoints; add --save FOLDER")
        if self.save is not None and self.save.exists() and not self.save.is_dir():
            raise SoapstoneError(f"--save {self.save} is a file; name a folder")

    def saves_after(self, step: int, last: bool) -> bool:
        return self.save is not None and (last or (self.every is not None and (step + 1) % self.every == 0))

    def optimizer_of(self, parameters: Any) -> torch.optim.Optimizer:
        from ..runtime.optimizers import torch_optimizer

        return torch_optimizer(self.optimizer, parameters, self.lr)


@takes_case
def train(
    case: Case,
    strategy: StrategyName = "data",
    steps: Steps = 10,
    lr: LearningRate = 1e-3,
    seed: Seed = 0,
    dropout: Dropout = "counter",
    compiled: Compile = False,
    graphed: Graphs = False,
    check: Check = False,
    save: SaveFolder = None,
    every: Every = None,
    keep: Keep = 2,
    resume: Resume = False,
    trace: Trace = None,
    report: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Train a model's example batch, under torchrun. It prints throughput, loss, idle shares, and the predicted against
    the measured time of a step."""
    from ..runtime.agreement import agree
    from ..runtime.transports import joined

    if trace is not None:
        check_writable(trace)
    check_report(report)
    chosen = case.strategy(strategy)
    wanted = Run(
        steps, lr, seed, dropout, case.training.optimizer, compiled, graphed, save, every, keep, resume
    )  # fmt: skip
    with joined(by_torchrun(case.topology)) as (transport, place):
        import torch

        agree(transport, lambda: check_ranks(case.topology, transport.size))
        case = _measured_once(case, chosen, transport)
        torch.manual_seed(seed)
        work = load_workload(case.request)
        warn_of_other_devices(case.topology, transport, place)
        if check:
            _check(case, work.on(place), chosen, wanted, transport, place)
            work = work.on(torch.device("cpu"))  # so that a GPU has only what the strategy gives it
        found = _train(case, work, chosen, wanted, transport, place)
        if transport.rank == 0:
            if trace is not None:
                save_events(found.happenings, trace)
            if report is not None:
                write_report(case, found.simulation, report, name=strategy, happenings=found.happenings)
            print_json(found.described()) if as_json else print_all(*found.shown(case))


def by_torchrun(topology: Topology) -> str:
    """The command that was typed, as torchrun starts it."""
    return shlex.join(
        ["torchrun", "--nproc-per-node", str(_ranks_per_node(topology)), "-m", "soapstone", *sys.argv[1:]]
    )


def _ranks_per_node(topology: Topology) -> int:
    return max(Counter(device.node for device in topology.devices).values())


def check_ranks(topology: Topology, size: int) -> None:
    """Raise RankError unless there is a rank for each device."""
    if size == topology.num_devices:
        return
    nodes = {device.node for device in topology.devices}
    several = f" on each of {len(nodes)} machines" if len(nodes) > 1 else ""
    raise RankError(
        f"there are {size} ranks for {topology.num_devices} devices; start torchrun with --nproc-per-node "
        f"{_ranks_per_node(topology)}{several}, or name a topology of {size} devices with -t"
    )


def _measured_once(case: Case, strategy: Strategy, transport: Transport) -> Case:
    """Rank 0 measures what is missing, while the others wait and then read it."""
    if not case.is_measured:
        return case
    if transport.rank == 0:
        simulate(case.graph, case.topology, strategy, training=case.training)
    transport.exchange(None)
    if transport.rank == 0:
        return case
    return replace(case, training=replace(case.training, costs=costs_of("measured", case.topology)))


@dataclass(frozen=True)
class Trained:
    """What training came to, over all ranks."""

    losses: list[float]
    seconds: float  # the median step of the slowest rank
    simulation: Simulation
    rates: Throughput
    records: list[Record]

    @property
    def predicted(self) -> float:
        return self.simulation.makespan

    @property
    def happenings(self) -> list[Happening]:
        """Of the last step, on all ranks."""
        return [happening for record in self.records for happening in record.happenings]

    def described(self) -> dict[str, Any]:
        return {
            "losses": self.losses,
            "step": self.seconds,
            "predicted": self.predicted,
            "throughput": self.rates.samples,
            **described_rates(self.rates),
            "idle": [record.idle for record in self.records],
        }

    def shown(self, case: Case) -> list[Listing | str]:
        table = Listing(("rank", "device", "idle"), ("idle",))
        for rank, (record, device) in enumerate(zip(self.records, case.topology.devices)):
            table.add_row(str(rank), device.name, f"{record.idle:.0%}")
        return [
            table,
            f"\nLoss {self.losses[0]:.6g} at first, {self.losses[-1]:.6g} after {len(self.losses)} steps.",
            f"[bold]{duration(self.seconds)}[/] a step, {self.rates}; predicted "
            f"{duration(self.predicted)}, {self.predicted / self.seconds:.2f}x of what was measured.",
            *self._advice(case),
        ]

    def _advice(self, case: Case) -> list[str]:
        """What would bring a prediction that is far off closer."""
        measured = all(link.summing is not None for link in case.topology.links)  # as calibrate leaves them
        known = {
            "`soapstone calibrate` measures the links": measured,
            "--costs measured measures the ops": case.is_measured,
        }
        missing = [what for what, is_known in known.items() if not is_known]
        near = 1 / FAR_OFF <= self.predicted / self.seconds <= FAR_OFF
        return [] if near or not missing else [f"For a closer prediction: {', and '.join(missing)}."]


def _train(
    case: Case, work: Workload, strategy: Strategy, wanted: Run, transport: Transport, place: torch.device
) -> Trained:
    parallel = _parallel(case, work, strategy, wanted, transport, place)
    optimizer = wanted.optimizer_of(parallel.parameters())
    batch = [tensor.to(place) for tensor in work.batch]
    losses, seconds, record = [], [], None
    first, end = _resumed(parallel, optimizer, wanted, transport), WARM + wanted.steps
    for step in range(first, end):
        last = step == end - 1
        transport.exchange(None)  # all begin together
        start, begin = perf_counter(), perf_counter_ns()
        if last:
            parallel.watch()
        loss = parallel.step(*batch)
        optimizer.step()
        if place.type == "cuda":
            import torch

            torch.cuda.synchronize(place)
        seconds.append(perf_counter() - start)
        losses.append(loss.item())
        if last:
            record = parallel.watched(begin, perf_counter_ns())
        if transport.rank == 0 and step % max(1, wanted.steps // 5) == 0:
            say(f"step {step}: loss {losses[-1]:.6g}, {duration(seconds[-1])}")
        if wanted.save is not None and wanted.saves_after(step, last):
            parallel.save(wanted.save, optimizer, step=step + 1, keep=wanted.keep)
    slowest = [max(times) for times in zip(*transport.exchange(seconds[WARM:] or seconds))]
    median = statistics.median(slowest)
    rates = throughput(case.graph, case.topology, median)
    return Trained(losses, median, parallel.simulation, rates, transport.exchange(record))


def _resumed(parallel: Parallel, optimizer: torch.optim.Optimizer, wanted: Run, transport: Transport) -> int:
    """The step to go on with."""
    from ..runtime.checkpoints import latest

    if wanted.save is None or not wanted.resume or not any(transport.exchange(latest(wanted.save) is not None)):
        return 0
    step = parallel.load(wanted.save, optimizer)
    if step >= WARM + wanted.steps:
        raise SoapstoneError(f"{wanted.save} has step {step} already; ask for more than {step - WARM} by --steps")
    if transport.rank == 0:
        say(f"Going on from step {step} of {wanted.save}.")
    return step


def _parallel(
    case: Case, work: Workload, strategy: Strategy, wanted: Run, transport: Transport, place: torch.device
) -> Parallel:
    from ..runtime import parallelize

    return parallelize(
        work,
        case.graph,
        case.topology,
        strategy,
        dropout=wanted.dropout,
        transport=transport,
        device=place,
        compile=wanted.compiled,
        cuda_graphs=wanted.graphed,
        training=case.training,
    )


def _check(
    case: Case, work: Workload, strategy: Strategy, wanted: Run, transport: Transport, place: torch.device
) -> None:
    from ..runtime.checking import check

    found = check(
        work, case.graph, strategy, transport=transport, place=place, seed=wanted.seed, training=case.training,
        compile=wanted.compiled, cuda_graphs=wanted.graphed,
    )  # fmt: skip
    if transport.rank == 0:
        say(found)


def warn_of_other_devices(topology: Topology, transport: Transport, place: torch.device) -> None:
    """Say where the ranks run on other devices than the topology has: predictions are for those."""
    import torch

    own = "cpu" if place.type == "cpu" else kind_of(torch.cuda.get_device_properties(place).name)
    found = transport.exchange(own)
    others = {(device.kind, kind) for device, kind in zip(topology.devices, found) if not is_kind(kind, device.kind)}
    if others and transport.rank == 0:
        wanted, real = (", ".join(sorted({pair[i] for pair in others})) for i in (0, 1))
        say(f"Warning: the topology has {wanted}, but these ranks run on {real}: times are predicted for {wanted}.")
