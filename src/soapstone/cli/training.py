"""`soapstone train`: what a strategy does on real ranks, which torchrun starts."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RankError
from ..files import check_writable
from ..loading import load_workload
from ..report import save_events
from ..simulator import simulate
from ..strategy import Strategy
from ..topology import Topology, is_kind, kind_of
from .arguments import Case, StrategyName, costs_of, takes_case
from .claiming import claimed
from .common import AsJson, Interface, print_all, print_json, say
from .elastic import Elastic, Fallback, check_elastic, given_strategy, searched_strategy, with_fewer_ranks
from .reporting import ReportFile, check_report, write_report
from .running import Run, Stopped, Trained, run_steps

if TYPE_CHECKING:
    import torch

    from ..runtime import Transport
    from ..tracing import Workload


class OnNan(StrEnum):
    stop = "stop"
    skip = "skip"
    ignore = "ignore"


Steps = Annotated[
    int, typer.Option(min=1, help="Steps after the first three, which warm up; with --resume, in all of the run.")
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="The optimizer's learning rate: 0.001, or as in the checkpoint.")
]
Check = Annotated[bool, typer.Option("--check", help="Compare losses and weights with one device first.")]
Trace = Annotated[Path | None, typer.Option(help="Write the last step's real timeline here, for ui.perfetto.dev.")]
Dropout = Annotated[str, typer.Option(help="counter: masks by seed, step and element; replay: torch's own masks.")]
Compile = Annotated[bool, typer.Option("--compile", help="Run segments through torch.compile.")]
Graphs = Annotated[bool, typer.Option("--cuda-graphs", help="Launch each segment as one CUDA graph.")]
Seed = Annotated[
    int | None,
    typer.Option(help="The seed of the initial weights, the data and dropout; by default 0, or the checkpoint's."),
]
SaveFolder = Annotated[
    Path | None, typer.Option("--save", metavar="FOLDER", help="Write checkpoints here, which all ranks must share.")
]
Every = Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints; without, one at the end.")]
Keep = Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, where there is one.")]
Convert = Annotated[
    bool, typer.Option("--convert", help="With --resume, convert a checkpoint in another floating-point type.")
]
LastGood = Annotated[
    bool, typer.Option("--last-good", help="With --resume, go on from the newest checkpoint that is not damaged.")
]
WeightsFile = Annotated[
    Path | None, typer.Option("--weights", help="Begin with the weights of a .safetensors or .pt file.")
]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Begin with the model and the optimizer of a checkpoint of another run, or of one that "
        "torch.distributed.checkpoint wrote.",
    ),
]
NanOption = Annotated[
    OnNan,
    typer.Option(
        "--on-nan",
        help="If a loss is not finite: stop, skip the step (at most ten in a row), or ignore it.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(min=0.0, help="Seconds after SIGTERM or Ctrl-C to save a last checkpoint; 0 saves none."),
]
Timeout = Annotated[float, typer.Option(min=1.0, max=864_000.0, help="Seconds that ranks wait for one another.")]


@takes_case
def train(
    case: Case,
    strategy: StrategyName = "data",
    steps: Steps = 10,
    lr: LearningRate = None,
    seed: Seed = None,
    dropout: Dropout = "counter",
    compiled: Compile = False,
    graphed: Graphs = False,
    check: Check = False,
    save: SaveFolder = None,
    every: Every = None,
    keep: Keep = 2,
    resume: Resume = False,
    convert: Convert = False,
    last_good: LastGood = False,
    elastic: Elastic = False,
    fallback: Fallback = None,
    weights: WeightsFile = None,
    source: Source = None,
    on_nan: NanOption = OnNan.stop,
    grace: Grace = 20.0,
    timeout: Timeout = 600.0,
    interface: Interface = None,
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
    check_elastic(elastic, fallback or [])
    wanted = Run(
        steps, lr, seed, dropout, case.training.optimizer, compiled, graphed, save, every, keep,
        resume or (elastic and save is not None), weights, source, on_nan, convert, last_good, grace,
    )  # fmt: skip
    case, whole = with_fewer_ranks(case) if elastic else case, case.topology
    given = case.strategy(strategy) if case.topology is whole else given_strategy(case, strategy, fallback or [])
    with joined(by_torchrun(whole), timeout, interface) as (transport, place):
        import torch

        agree(transport, lambda: check_ranks(case.topology, transport.size))
        with claimed(save, wanted.resume, seed, transport) as claim:
            chosen = given or searched_strategy(case, transport)
            case = _measured_once(case, chosen, transport)
            torch.manual_seed(claim.seed)
            work = load_workload(case.request)
            warn_of_other_devices(case.topology, transport, place)
            if check:
                _check(case, work.on(place), chosen, wanted, claim.seed, transport, place)
                work = work.on(torch.device("cpu"))  # so that a GPU has only what the strategy gives it
            found = run_steps(case, work, chosen, wanted, claim, transport, place)
        if transport.rank == 0 and isinstance(found, Trained):
            if trace is not None:
                save_events(found.happenings, trace)
            if report is not None:
                write_report(case, found.simulation, report, name=strategy, happenings=found.happenings)
            print_json(found.described()) if as_json else print_all(*found.shown(case))
    if isinstance(found, Stopped):
        raise typer.Exit(found.status)


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


def _check(
    case: Case, work: Workload, strategy: Strategy, wanted: Run, seed: int, transport: Transport, place: torch.device
) -> None:
    from ..runtime.checking import check

    found = check(
        work, case.graph, strategy, transport=transport, place=place, seed=seed, training=case.training,
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
