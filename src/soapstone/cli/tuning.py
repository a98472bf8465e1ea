"""`soapstone tune`: which way is really the fastest here? Under torchrun."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live as Screen
from rich.text import Text

from ..errors import RankError, SoapstoneError
from ..files import check_writable
from ..loading import load_workload
from ..searching import interrupts
from ..searching.interrupts import Interrupt
from ..strategy import Strategy, arguments_in
from ..topology import Topology
from .arguments import Case, Unplaced, takes_unplaced, topology_of
from .calibrating import measured_links
from .common import AsJson, Cell, Interface, Listing, Terminal, bold, duration, is_quiet, print_all, print_json, say
from .live import EVERY
from .searching import LEAST_SECONDS, Starts
from .training import Graphs, check_ranks, warn_of_other_devices

if TYPE_CHECKING:
    import torch

    from ..runtime import Transport
    from ..tuning import Row, Standing, Tuned

BUDGET, LIMIT = 20.0, 300.0  # as `tune` has them, which loads torch
EXAMPLE = "torchrun --nproc-per-node 2 -m soapstone tune MODEL"
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Write the strategy here; else to MODEL.TOPOLOGY.json. One that is there races, too."
    ),
]
Budget = Annotated[float, typer.Option(min=LEAST_SECONDS, help="Seconds that the search may take.")]
Limit = Annotated[float, typer.Option(min=LEAST_SECONDS, help="Seconds that all of it may take.")]
Seed = Annotated[int, typer.Option(help="Of the search, and of the first weights.")]


@takes_unplaced(batch_norm="local", costs="measured")
def tune_command(
    named: Unplaced,
    output: Output = None,
    budget: Budget = BUDGET,
    limit: Limit = LIMIT,
    start: Starts = None,
    seed: Seed = 0,
    graphed: Graphs = False,
    interface: Interface = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest strategy by running the few best, under torchrun. DistributedDataParallel runs beside them.
    Without -t the links are calibrated first. Ctrl-C keeps the best so far."""
    begun = monotonic()
    from ..runtime.agreement import agree
    from ..runtime.optimizers import check_optimizer
    from ..runtime.transports import joined

    check_optimizer(named.arguments["optimizer"])
    path = _checked(named, output, start or [])
    with joined(EXAMPLE, interface=interface) as (transport, place):
        import torch

        from ..tuning import tune

        case = _placed(named, path, transport, place)
        agree(transport, lambda: check_ranks(case.topology, transport.size))
        graph = agree(transport, lambda: case.graph)
        starts = agree(transport, lambda: _starts(case, path, start or []) if transport.rank == 0 else [])
        torch.manual_seed(seed % 2**63)
        work = agree(transport, lambda: load_workload(case.request).on(place))
        warn_of_other_devices(case.topology, transport, place)
        with interrupts(), _ended_gently():
            with _shown(case) as show:
                found = tune(
                    work, graph, case.topology, training=case.training, budget=budget,
                    limit=max(limit - (monotonic() - begun), 1.0), seed=seed, initial=starts, cuda_graphs=graphed,
                    device=place, transport=transport, progress=show,
                )  # fmt: skip
            if transport.rank == 0:
                found.save(path, case.arguments)
                print_json(_described(found, path)) if as_json else print_all(
                    *_told(found, case), f"Written to {path}."
                )
        if found.failure:
            raise RankError(found.failure)


@contextmanager
def _ended_gently() -> Iterator[None]:
    """What ends a process does what Ctrl-C does to a tuning, and nothing while its result is put away: torchrun sends
    it to the ranks that are left when one is gone."""

    def stop(_: int, frame: FrameType | None) -> None:
        as_ctrl_c = signal.getsignal(signal.SIGINT)
        if isinstance(as_ctrl_c, Interrupt) and as_ctrl_c.stop is not None:
            as_ctrl_c(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checked(model: Unplaced, output: Path | None, start: list[str]) -> Path:
    """Where the strategy goes. Raises SoapstoneError for what is wrong before any rank is joined."""
    named = topology_of(model.topology) if model.topology is not None else Topology.parse("cpu:1x2")
    case = model.on(named, model.topology or "here", costs="analytic")
    path = Path(f"{case.file_name}.json") if output is None else output
    check_writable(path)
    for file in start:
        arguments_in(file)
    if path.is_file() and path.stat().st_size:
        arguments_in(path)
    return path


def _starts(case: Case, path: Path, start: list[str]) -> list[Strategy]:
    """Strategies to begin with: those that the user names, and the one that would be replaced."""
    found = case.strategies(*start)
    if path.is_file() and path.stat().st_size:
        try:
            before = Strategy.load(path, case.graph, case.topology, fit=case.fit)
        except SoapstoneError as error:
            raise SoapstoneError(f"{error}; name another file with -o") from None
        say(f"{path} is there: it races, too{'' if before.measured is None else f'. It took {before.measured}'}.")
        found.append(before)
    return found


def _placed(model: Unplaced, path: Path, transport: Transport, place: torch.device) -> Case:
    """The case on the machines that the user names, else on those that are here: as they were calibrated before, in a
    file beside the strategy's, or calibrated now. Rank 0's are everyone's."""
    from ..runtime.agreement import agree

    if model.topology is not None:
        named = model.topology
        return agree(transport, lambda: model.on(topology_of(named), named))
    beside = path.with_suffix(".yaml")
    if agree(transport, lambda: transport.exchange(_is_calibrated(beside, transport)))[0]:
        say(f"Links as {beside} has them; remove it to measure them anew.")
        machines = transport.exchange(Topology.load(beside) if transport.rank == 0 else None)[0]
    else:
        say("Calibrating the links: no topology is given ...")
        machines = transport.exchange(measured_links(transport, place).topology)[0]
        agree(transport, lambda: machines.save(beside) if transport.rank == 0 else None)
        say(f"Links written to {beside}.")
    return agree(transport, lambda: model.on(machines, str(beside)))


def _is_calibrated(path: Path, transport: Transport) -> bool:
    """Whether a file has these ranks' links. Only rank 0 looks."""
    if transport.rank != 0 or not path.exists():
        return False
    return Topology.load(path).num_devices == transport.size


class _Show:
    """Hears what a tuning does: a table that moves where a person looks, else a line now and then."""

    def __init__(self, what: str, console: Console) -> None:
        self.what, self.console = what, console
        self._now: Standing | None = None
        self._said, self._when = "", 0.0

    def __call__(self, now: Standing) -> None:
        self._now = now
        if self.console.is_terminal or is_quiet():
            return
        phase = now.what.split(",")[0]
        if phase != self._said or monotonic() - self._when >= EVERY:
            self._said, self._when = phase, monotonic()
            self.console.print(f"{self.what}: {self._line(now)}", soft_wrap=True)

    def _line(self, now: Standing) -> str:
        share = "" if now.share is None else f", {now.share:.0%}"
        times = [f"{row.name} {duration(row.measured)}" for row in now.rows if row.measured is not None]
        rounds = f" ({max(row.rounds for row in now.rows)} rounds): {', '.join(times)}" if times else " ..."
        return f"{now.what}{share}{rounds}"

    def __rich__(self) -> Group:
        if self._now is None:
            return Group()
        table = [_table(self._now.rows).table(self.console)] if self._now.rows else []
        return Group(*table, f"{self.what}: {self._line(replace(self._now, rows=()))}")


@contextmanager
def _shown(case: Case) -> Iterator[_Show]:
    console = Terminal(stderr=True, quiet=is_quiet())
    show = _Show(f"Tuning {case.model}", console)
    if not console.is_terminal or is_quiet():
        yield show
        return
    with Screen(show, console=console, transient=True, refresh_per_second=4):
        yield show


def _table(rows: tuple[Row, ...]) -> Listing:
    numbers = ("predicted", "measured", "against DDP", "interval", "rounds")
    table = Listing(("strategy", *numbers, ""), numbers, wraps=("",), optional=("interval", "rounds"))
    for row in rows:
        ratio = row.against_ddp
        table.add_row(
            bold(row.name),
            "-" if row.predicted is None else duration(row.predicted),
            "-" if row.measured is None else duration(row.measured),
            "-" if ratio is None else f"{ratio.value:.3f}x",
            "-" if ratio is None else f"{ratio.low:.3f} to {ratio.high:.3f}",
            str(row.rounds),
            row.note,
        )
    return table


ENDS = {
    "time": "The time was over before the order was clear; --limit gives it more.",
    "stopped": "Stopped early; this is the best so far.",
}


def _told(found: Tuned, case: Case) -> list[Listing | Cell]:
    first, lines = Text.assemble("\n", (found.chosen, "bold"), " is kept"), list[str]()
    measured, ratio = found.strategy.measured, found.against_ddp
    if measured is None:
        first.append(": the search's best. Nothing was run.")
    elif ratio is None:
        first.append(f": {duration(measured.seconds)} a step. DistributedDataParallel did not run beside it.")
    else:
        first.append(f": {duration(measured.seconds)} a step, {ratio.value:.3f}x of DistributedDataParallel's.")
    if found.keeps_promise is False and ratio is not None:
        lines.append(
            f"That is {ratio.value - 1:.1%} slower than DistributedDataParallel, and nothing here is faster: "
            "for this model use that."
        )
    if case.graph.settings.batch_norm == "global" and any("batch_norm" in op.kind for op in case.graph.ops):
        lines.append("Batch norm is global here and local in DistributedDataParallel, which so does less.")
    return [_table(found.rows), first, *lines, *([ENDS[found.ended]] if found.ended in ENDS else [])]


def _described(found: Tuned, path: Path) -> dict[str, Any]:
    def ratio(row: Row) -> list[float] | None:
        return None if row.against_ddp is None else [row.against_ddp.value, row.against_ddp.low, row.against_ddp.high]

    rows = [
        {
            "name": row.name, "predicted": row.predicted, "measured": row.measured, "against_ddp": ratio(row),
            "rounds": row.rounds, "note": row.note,
        }
        for row in found.rows
    ]  # fmt: skip
    about = {"chosen": found.chosen, "ended": found.ended, "keeps_promise": found.keeps_promise, "rows": rows}
    return {**about, "strategy": found.strategy.to_data(), "path": str(path)}
