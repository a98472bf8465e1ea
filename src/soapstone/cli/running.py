"""The steps of `soapstone train`: how a user wants them, doing them, and what they came to."""

from __future__ import annotations

import math
import statistics
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import SoapstoneError
from ..simulator import Throughput, throughput
from ..strategy import Strategy
from .arguments import Case
from .claiming import Claim
from .common import Cell, Listing, duration, say
from .predict import described_rates

if TYPE_CHECKING:
    import torch

    from ..runtime import Parallel, Transport
    from ..runtime.records import Happening, Record
    from ..simulator import Simulation
    from ..tracing import Workload

LEARNING_RATE = 1e-3
SPEAKING = 30.0  # seconds after which a line is due
WARM = 3  # steps that do not count: the first ones record what the others repeat
FAR_OFF = 1.5  # times


@dataclass(frozen=True)
class Run:
    """How the user wants to train."""

    steps: int
    lr: float | None  # what the checkpoint has, or the default
    seed: int | None  # None means the checkpoint's, or 0
    dropout: str
    optimizer: str
    compiled: bool
    graphed: bool
    save: Path | None = None
    every: int | None = None
    keep: int = 2
    resume: bool = False
    weights: Path | None = None
    source: Path | None = None  # a checkpoint of another run, or of another program
    on_nan: str = "stop"
    convert: bool = False
    last_good: bool = False
    grace: float = 0.0  # seconds for a last checkpoint after a signal

    def __post_init__(self) -> None:
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise SoapstoneError(f"--lr {self.lr} is no learning rate; use a number above 0")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise SoapstoneError(f"--seed {self.seed} has more than 64 bits; use a smaller one")
        if self.save is None and (self.resume or self.every is not None):
            raise SoapstoneError("--resume and --every need the folder of the checkpoints; add --save FOLDER")
        if not self.resume and (self.last_good or (self.convert and self.source is None)):
            raise SoapstoneError("--convert and --last-good say how to load a checkpoint; add --resume")
        if self.weights is not None and self.source is not None:
            raise SoapstoneError("--weights and --from both give the initial weights; leave one out")
        if self.save is not None and self.save.exists() and not self.save.is_dir():
            raise SoapstoneError(f"--save {self.save} is a file; name a folder")
        if self.save is not None:
            _check_folder(self.save)

    def saves_after(self, step: int, last: bool) -> bool:
        return self.save is not None and (last or (self.every is not None and (step + 1) % self.every == 0))

    def optimizer_of(self, parameters: Any) -> torch.optim.Optimizer:
        from ..runtime.optimizers import torch_optimizer

        return torch_optimizer(self.optimizer, parameters, LEARNING_RATE if self.lr is None else self.lr)


def _check_folder(folder: Path) -> None:
    """Raise SoapstoneError unless checkpoints can be written there, before training begins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SoapstoneError(f"cannot write to --save {folder}: {error.strerror}; name another folder") from None


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

    def shown(self, case: Case) -> list[Listing | Cell]:
        table = Listing(("rank", "device", "idle"), ("idle",))
        for rank, (record, device) in enumerate(zip(self.records, case.topology.devices)):
            table.add_row(str(rank), device.name, f"{record.idle:.0%}")
        return [
            table,
            f"\nLoss {self.losses[0]:.6g} at first, {self.losses[-1]:.6g} after {len(self.losses)} steps.",
            Text.assemble(
                (duration(self.seconds), "bold"),
                f" a step, {self.rates}; predicted {duration(self.predicted)}, {self.predicted / self.seconds:.2f}x of "
                "what was measured.",
            ),
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


@dataclass(frozen=True)
class Stopped:
    """Training was stopped by a signal; `status` is the exit status for it."""

    status: int


class _Progress:
    """Prints a line on rank 0 for every fifth of the steps, for steps that are skipped, and for one now and then."""

    def __init__(self, wanted: Run, speaks: bool) -> None:
        self._wanted, self._speaks = wanted, speaks
        self._skipped, self._said = 0, perf_counter()

    def add(self, step: int, loss: float, seconds: float) -> None:
        now = perf_counter()
        is_skipped = self._wanted.on_nan == "skip" and not math.isfinite(loss)
        self._skipped += is_skipped
        is_due = step % max(1, self._wanted.steps // 5) == 0 or is_skipped or now - self._said > SPEAKING
        if self._speaks and is_due:
            say(f"step {step}: loss {loss:.6g}, {'skipped' if is_skipped else duration(seconds)}")
            self._said = now

    def end(self, steps: int) -> None:
        if self._skipped and self._speaks:
            say(f"{self._skipped} of {steps} steps were skipped, since their losses were not finite.")


def run_steps(
    case: Case, work: Workload, strategy: Strategy, wanted: Run, claim: Claim, transport: Transport, place: torch.device
) -> Trained | Stopped | None:
    """Train; None where all steps had been done before."""
    from ..runtime.transports.stopping import stoppable

    parallel = _parallel(case, work, strategy, wanted, transport, place)
    optimizer = wanted.optimizer_of(parallel.parameters())
    batch = [tensor.to(place) for tensor in work.batch]
    losses, seconds, record = [], [], None
    first, end = _first_step(parallel, optimizer, wanted, claim, transport), WARM + wanted.steps
    if first >= end:
        claim.is_done = True
        return None
    progress = _Progress(wanted, transport.rank == 0)
    with stoppable(transport, wanted.grace) as stop:
        for step in range(first, end):
            last = step == end - 1
            if stop():  # this also makes all ranks begin the step together
                _save_last(parallel, optimizer, wanted, first, step, stop.reason, transport)
                return Stopped(stop.status)
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
            progress.add(step, losses[-1], seconds[-1])
            if wanted.save is not None and wanted.saves_after(step, last):
                parallel.save(wanted.save, optimizer, step=step + 1, keep=wanted.keep, wait=last)
    claim.is_done = True
    progress.end(len(losses))
    slowest = [max(times) for times in zip(*transport.exchange(seconds[WARM:] or seconds))]
    median = statistics.median(slowest)
    rates = throughput(case.graph, case.topology, median)
    return Trained(losses, median, parallel.simulation, rates, transport.exchange(record))


def _save_last(
    parallel: Parallel, optimizer: torch.optim.Optimizer, wanted: Run, first: int, step: int, reason: str,
    transport: Transport,
) -> None:  # fmt: skip
    """Write a last checkpoint, after `step` steps, unless there is one of that step. Say how the run was stopped."""
    from ..runtime.checkpoints import latest

    if wanted.save is not None:
        if step > first and not wanted.saves_after(step - 1, last=False):
            parallel.save(wanted.save, optimizer, step=step, keep=wanted.keep)
        parallel.saved()
    if transport.rank == 0:
        path = None if wanted.save is None else latest(wanted.save)
        kept = "nothing is saved" if path is None else f"saved {path}; go on with --resume"
        say(f"Stopped by {reason} after {step} steps; {kept}.", always=True)


def _first_step(
    parallel: Parallel, optimizer: torch.optim.Optimizer, wanted: Run, claim: Claim, transport: Transport
) -> int:
    """Load the initial weights or the checkpoint, and return the step to begin with."""
    if wanted.save is None or not claim.goes_on:
        if wanted.weights is not None:
            parallel.load_weights(wanted.weights)
        if wanted.source is not None:
            _load(parallel, optimizer, wanted, wanted.source, last_good=False)  # nothing of another run is renamed
        return 0
    step = _load(parallel, optimizer, wanted, wanted.save, last_good=wanted.last_good)
    if transport.rank == 0:
        done = "which were all; --steps says how many" if step >= WARM + wanted.steps else "to go on from"
        say(f"{wanted.save} has {step} steps, {done}.")
    return step


def _load(parallel: Parallel, optimizer: torch.optim.Optimizer, wanted: Run, folder: Path, *, last_good: bool) -> int:
    """Load a checkpoint and return its step."""
    with warnings.catch_warnings(record=True) as damaged:
        warnings.simplefilter("always")
        step = parallel.load(folder, optimizer, convert=wanted.convert, last_good=last_good)
    for warning in damaged:
        say(f"{warning.message}.", always=True)
    for group in optimizer.param_groups if wanted.lr is not None else ():
        group["lr"] = wanted.lr
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
        on_nan=wanted.on_nan,
        training=case.training,
    )
