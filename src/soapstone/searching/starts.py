"""The strategies that a search begins with, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from ..baselines import BASELINES, UNSHARDED
from ..errors import SoapstoneError
from ..files import shortened
from ..strategy import Native, Strategy
from ..topology import Topology
from .additive import Additive
from .chain import Chain
from .interrupts import Interrupt
from .least_sums import least_sums
from .methods import Start
from .problem import Problem
from .tying import Groups, tied

# What each method begins with; one: everything on one device of each kind; node: the baselines on one node of several;
# sharded: the baselines that shard parameters, where that is looked for.
INITIAL = {"soapstone": (*UNSHARDED, "one", "node", "optcnn", "sharded", "random"), "paper": ("data", "random")}
# OptCNN looks for a start in at most this share of the time, in as many options as it gets to; where proposals are
# counted, which must not depend on the clock, in few options on up to so many devices.
OPTCNN_SHARE, OPTCNN_DEVICES, FEW_ROUNDS = 0.5, 16, 2
SHARDED = ("zero1", "fsdp")
TICK = 0.1  # seconds between two calls of `progress`

KNOWN = ", ".join((*BASELINES, *(name for name in INITIAL["soapstone"] if name not in BASELINES)))

Initial = str | Strategy | Sequence[str | Strategy]


def starts_of(
    problem: Problem, initial: Sequence[str | Strategy], levels: list[Groups], deadline: StartDeadline
) -> list[Start]:
    """The initial strategies, the fastest first; random ones come last and are drawn when it is their turn. OptCNN's is
    among them if it is found in time."""
    given: list[list[Native]] = []
    drawn: list[Start] = []
    for start in initial:
        if isinstance(start, Strategy):
            start.check(problem.whole, problem.topology)
            given.append(start.native)
        elif start == "random":
            drawn.append(Chain.at_random)
        elif isinstance(start, str) and start in BASELINES:
            given.append(BASELINES[start](problem.graph, problem.topology).native)
        elif start == "one":
            given += problem.on_one_device()
        elif start == "node":
            given += problem.on_one_node()
        elif start == "optcnn":
            given += _by_optcnn(problem, levels, deadline, alone=len(initial) == 1)
        elif start == "sharded":
            names = SHARDED if problem.options.shards else ()
            given += [BASELINES[name](problem.graph, problem.topology).native for name in names]
        else:
            raise SoapstoneError(f"initial={shortened(start)} is no strategy; use {KNOWN}, or a Strategy")
    if not given and not drawn and deadline.is_interrupted():
        raise KeyboardInterrupt
    if not given and not drawn:
        raise SoapstoneError(f"a search needs an initial strategy; use {KNOWN}, or a Strategy")
    ranked = _ranked(problem, _with_and_without_checkpoints(problem, given), deadline)
    for native in ranked:
        for groups in levels:
            problem.ask(tied(native, groups))
    return [*map(_fixed, ranked), *drawn]


def _with_and_without_checkpoints(problem: Problem, given: list[list[Native]]) -> list[list[Native]]:
    """A model that checkpoints layers may have room enough to keep what they make: else it is recomputed."""
    if not any(op.recompute for op in problem.graph.ops):
        return given
    kept = [[(degrees, devices, shard, False, w) for degrees, devices, shard, _, w in native] for native in given]
    if not problem.recompute:
        return kept
    return [*kept, *(native for native, other in zip(given, kept) if problem.cost(other)[0])]


def _ranked(problem: Problem, given: Sequence[list[Native]], deadline: StartDeadline) -> list[list[Native]]:
    """The fastest first, of those that fit. Where some do not, they get the least recomputation with which they do, and
    ops may be recomputed from then on."""
    costs: list[tuple[bool, int]] = []
    for number, native in enumerate(given):
        deadline.tell(number / len(given))
        costs.append(problem.cost(native))
    problem.options.recomputes |= problem.recompute and any(not_fitting for not_fitting, _ in costs)
    if not problem.options.recomputes:
        return [given[i] for i in sorted(range(len(given)), key=lambda i: costs[i])]
    found: list[tuple[tuple[bool, int], list[Native]]] = []
    for number, (native, cost) in enumerate(zip(given, costs)):
        deadline.tell(number / len(given))
        less = problem.recomputed(native) if cost[0] and not deadline.is_interrupted() else native
        found.append((cost if less == native else problem.cost(less), less))
    return [native for _, native in sorted(found, key=lambda pair: pair[0])]


class StartDeadline:
    """How long OptCNN may look for a start: a share of the seconds, or for its first few options."""

    def __init__(
        self, topology: Topology, budget: float | None, report: Callable[[float], None], interrupt: Interrupt
    ) -> None:
        self._begun = self._reported = monotonic()
        self._few_devices = topology.num_devices <= OPTCNN_DEVICES
        self._most = None if budget is None else OPTCNN_SHARE * budget
        self._report, self._interrupt = report, interrupt

    @property
    def seconds(self) -> float:
        """That are gone."""
        return monotonic() - self._begun

    @property
    def counts_proposals(self) -> bool:
        """Then no clock may decide."""
        return self._most is None

    def is_interrupted(self) -> bool:
        return self._interrupt.happened

    def is_over(self) -> bool:
        if self.is_interrupted():
            return True
        if self._most is None:
            return not self._few_devices
        self.tell(min(self.seconds / self._most, 1.0))
        return self.seconds >= self._most

    def tell(self, share: float) -> None:
        """How far the look for starts is."""
        if monotonic() >= self._reported + TICK:
            self._reported = monotonic()
            self._report(share)


def _by_optcnn(problem: Problem, tyings: Sequence[Groups], deadline: StartDeadline, alone: bool) -> list[list[Native]]:
    """The fastest of OptCNN's strategies of a few options and of more, as many as there is time for. Where it is the
    only start, or proposals are counted, of few options. Where one does not fit, with more options it would be faster
    and hardly smaller, so that is the last. None where the graph does not reduce."""
    rounds = FEW_ROUNDS if alone or deadline.counts_proposals else None
    sums = least_sums(Additive(problem), tyings, deadline.is_interrupted if alone else deadline.is_over)
    found: list[tuple[tuple[bool, int], list[Native]]] = []
    while rounds is None or len(found) < rounds:
        try:
            _, native = next(sums)
        except (StopIteration, SoapstoneError):
            break
        is_too_large, makespan = problem.cost(native)
        found.append(((is_too_large, makespan), native))
        if is_too_large:
            break
    return [native for _, native in sorted(found, key=lambda pair: pair[0])[:1]]


def _fixed(native: list[Native]) -> Start:
    def start(_: Chain, __: Groups) -> list[Native]:
        return native

    return start
