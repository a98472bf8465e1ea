"""Find the fastest strategy by running the few best: calibrate, search, race, keep the winner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import torch

from ..costs import AnalyticCosts, PreparedCosts
from ..costs.measured import MeasuredCosts
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph
from ..runtime import Transport
from ..runtime.agreement import agree
from ..runtime.calibration import Calibrator
from ..runtime.optimizers import check_optimizer
from ..runtime.transports import default_transport
from ..runtime.weights import is_meta
from ..searching import Progress, interrupts
from ..simulator import Training, check_training
from ..strategy import Strategy
from ..topology import Topology, neighbours_of
from ..tracing import Workload, capture
from .candidates import Candidate, find_candidates, only_baselines
from .contest import Contest, make_together
from .outcome import DDP, PROMISE, Standing, Tuned, outcome_of, rows_of
from .race import Race
from .steps import Step, can_run_ddp, ddp_step, our_step

BUDGET, LIMIT = 20.0, 300.0  # seconds of search, and of all
MEASURING, SEARCHING = 0.5, 0.4  # shares of the limit that measuring ops and searching may take at most
ROOM = 0.8  # of a device's memory, for all contestants together


def tune(
    work: Workload,
    graph: OperatorGraph | None = None,
    topology: Topology | None = None,
    *,
    training: Training | None = None,
    budget: float = BUDGET,
    limit: float = LIMIT,
    seed: int = 0,
    initial: Strategy | Sequence[Strategy] = (),
    cuda_graphs: bool = False,
    device: torch.device | str | None = None,
    transport: Transport | None = None,
    progress: Callable[[Standing], None] = lambda _: None,
) -> Tuned:
    """Search, really run the few best strategies, the baselines and DistributedDataParallel in turns, and return the
    fastest strategy; every rank calls it, with the same arguments.

    Without a graph the workload is captured, with batch norm of each rank's own samples, as DistributedDataParallel has
    it. Without a topology the links are calibrated; without a training op times are measured, by rank 0. `initial` are
    strategies that the search starts from and that race, too. `budget` are seconds of search, `limit` of everything.
    Ctrl-C ends it with the best so far. Raises a SoapstoneError on every rank where any rank cannot begin.
    """
    begun = monotonic()
    place = torch.device(device) if device is not None else work.place
    transport = default_transport(place) if transport is None else transport
    starts = [initial] if isinstance(initial, Strategy) else list(initial)

    def prepare() -> OperatorGraph:
        check_limits(budget, limit)
        check_training(Training() if training is None else training)
        check_optimizer("adam" if training is None else training.optimizer)
        return capture(work, batch_norm="local") if graph is None else graph

    with interrupts(lambda: None) as interrupt:
        graph = agree(transport, prepare)
        if topology is None:
            progress(Standing("Calibrating"))
            topology = (
                Calibrator(transport, place, lambda share, what: progress(Standing(f"Calibrating {what}")))
                .run()
                .topology
            )
        ranks = _Ranks(transport, place, begun + limit, lambda: interrupt.happened, progress)
        training = training or _measured_training(ranks, topology)
        found = ranks.candidates(graph, topology, training, min(budget, SEARCHING * limit), seed, starts)
        contest = ranks.contest(work, graph, found, training, cuda_graphs)
        names = [candidate.name for candidate in found]
        race = contest.run(names, DDP, PROMISE)
    return outcome_of(found, contest, race, topology, transport, place)


def check_limits(budget: float, limit: float) -> None:
    """Raise SoapstoneError unless these are times."""
    for name, value in (("budget", budget), ("limit", limit)):
        if type(value) not in (int, float) or not 0 < value < inf:
            raise SoapstoneError(f"{name}={shortened(value)} is not a number of seconds above 0")


class _StoppedError(Exception):
    """Rank 0 was told to stop, or has no time left, before there was anything to keep."""


@dataclass(frozen=True)
class _Ranks:
    """Who tunes, and until when."""

    transport: Transport
    place: torch.device
    deadline: float
    is_stopped: Callable[[], bool]
    progress: Callable[[Standing], None]

    def candidates(
        self, graph: OperatorGraph, topology: Topology, training: Training, budget: float, seed: int,
        starts: list[Strategy],
    ) -> list[Candidate]:  # fmt: skip
        """Rank 0's, on every rank."""
        transport = self.transport

        def find() -> list[Any] | None:
            if transport.rank != 0:
                return None
            found = self._found(graph, topology, training, budget, seed, starts)
            return None if found is None else [candidate.packed() for candidate in found]

        packed = transport.exchange(agree(transport, find))[0]
        if packed is None:
            raise KeyboardInterrupt
        if not packed:
            raise SoapstoneError("no strategy was found that fits into the devices' memory; use a smaller batch")
        return [Candidate.unpacked(graph, topology, each) for each in packed]

    def _found(
        self, graph: OperatorGraph, topology: Topology, training: Training, budget: float, seed: int,
        starts: list[Strategy],
    ) -> list[Candidate] | None:  # fmt: skip
        """None where it was stopped before there was anything to keep."""
        latest = self.deadline - (1 - MEASURING) * (self.deadline - monotonic())

        def report(now: Progress) -> None:
            if now.phase == "searching":
                best = "" if now.makespan is None else f", best {now.makespan * 1e3:.4g} ms"
                self.progress(Standing(f"Searching{best}", share=now.share))
                return
            if isinstance(training.costs, PreparedCosts) and now.share > 0:  # else all is known
                self.progress(Standing("Measuring ops", share=now.share))
            if self.is_stopped() or monotonic() > latest:
                raise _StoppedError

        try:
            return find_candidates(
                graph, topology, training=training, budget=budget, seed=seed, starts=starts, progress=report
            )[0]
        except _StoppedError:
            if self.is_stopped():
                return None
        self.progress(Standing("Measuring takes too long for a search: baselines only"))
        return only_baselines(graph, topology, replace(training, costs=AnalyticCosts()))

    def contest(
        self, work: Workload, graph: OperatorGraph, found: list[Candidate], training: Training, cuda_graphs: bool
    ) -> Contest:
        makers: dict[str, Callable[[], Step]] = {}
        mine = self.transport.rank
        for candidate in found:
            makers[candidate.name] = partial(
                our_step, work, graph, candidate.strategy, training=training, transport=self.transport,
                place=self.place, peak=candidate.peak[mine] if mine < len(candidate.peak) else 0,
                cuda_graphs=cuda_graphs and candidate.strategy.microbatches == 1,
            )  # fmt: skip
        if can_run_ddp(graph, self.transport) and not is_meta(work.model):
            settings = graph.settings
            ddp = partial(
                ddp_step,
                work,
                optimizer=training.optimizer,
                batch_dims=settings.batch_dims,
                precision=settings.precision,
            )
            makers = {DDP: make_together(self.transport, ddp), **makers}
        together = all(self.transport.exchange(self._has_room(found)))

        def show(what: str, race: Race | None) -> None:
            rows = () if race is None else rows_of(found, race, {})
            self.progress(Standing(what, rows))

        return Contest(
            self.transport, self.place, makers, together=together, deadline=self.deadline, is_stopped=self.is_stopped,
            progress=show,
        )  # fmt: skip

    def _has_room(self, found: list[Candidate]) -> bool:
        """Whether this rank's memory holds all contestants at once; DistributedDataParallel takes what ours takes."""
        rank = self.transport.rank
        needed = sum(candidate.peak[rank] for candidate in found) + found[0].peak[rank]
        if self.place.type == "cuda":
            own = str(torch.cuda.get_device_properties(self.place).uuid)
            sharing = self.transport.exchange(own).count(own)
            return needed <= ROOM * torch.cuda.mem_get_info(self.place)[0] / sharing
        return needed <= ROOM * found[0].strategy.topology.devices[rank].memory


def _measured_training(ranks: _Ranks, topology: Topology) -> Training:
    if ranks.transport.rank != 0:
        return Training()
    on_cpu = ranks.place.type == "cpu"
    return Training(MeasuredCosts("cpu", beside=neighbours_of(topology)) if on_cpu else MeasuredCosts("cuda"))
