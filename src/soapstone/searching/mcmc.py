"""Find a fast strategy: Markov chains over the space, each proposal judged by the simulator (section "Execution
Optimizer" of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..baselines import BASELINES, UNSHARDED
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph, scaled
from ..simulator import ENGINES, FASTEST, Training, translated_errors, workspace_of
from ..strategy import Native, Strategy
from ..topology import Topology
from .additive import Additive
from .chain import NEVER, Budget, Chain, check_budget
from .interrupts import Interrupt, interrupts
from .least_sums import least_sums
from .methods import METHODS, TEMPERATURES, Start
from .problem import Problem
from .tying import Groups, levels, tied

# What each method begins with; one: everything on one device of each kind; node: the baselines on one node of several;
# sharded: the baselines that shard parameters, where that is looked for.
INITIAL = {"soapstone": (*UNSHARDED, "one", "node", "optcnn", "sharded", "random"), "paper": ("data", "random")}
# OptCNN looks for a start in at most this share of the time, in as many options as it gets to; where proposals are
# counted, which must not depend on the clock, in few options on up to so many devices.
OPTCNN_SHARE, OPTCNN_DEVICES, FEW_ROUNDS = 0.5, 16, 2
SHARDED = ("zero1", "fsdp")
TICK = 0.1  # seconds between two calls of `progress`


@dataclass(frozen=True)
class Progress:
    """How far a search is: the share of its budget that is gone, and the best makespan in seconds, None before there is
    a strategy that fits."""

    phase: str
    share: float
    proposals: int = 0
    seconds: float = 0.0
    makespan: float | None = None


@dataclass(frozen=True)
class Improvement:
    """A new best strategy, after so many proposals and seconds of one chain. Before one fits, the best is what fits
    best, and its makespan may rise."""

    proposals: int
    seconds: float
    makespan: float


@dataclass(frozen=True)
class SearchResult:
    """The best strategy and how it was found. `locally_optimal` is "yes" where no change of one op within the space
    improves it, "no" where one does, and "budget ended" where that was not seen to the end."""

    strategy: Strategy
    makespan: float
    history: tuple[Improvement, ...]  # of the chain that found it
    proposals: int
    seconds: float
    locally_optimal: str
    neighbours: int  # tried without an improvement, one after the other
    interrupted: bool

    def __repr__(self) -> str:
        return f"SearchResult({self.makespan * 1e3:.3f} ms, {self.proposals} proposals, {self.seconds:.1f} s)"


def search(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    budget: float | None = 30.0,
    proposals: int | None = None,
    seed: int = 0,
    initial: str | Strategy | Sequence[str | Strategy] | None = None,
    method: str = "soapstone",
    chains: int = 1,
    memory_limit: bool = True,
    sharding: bool = True,
    recompute: bool = True,
    temperature: float | None = None,
    engine: str = FASTEST,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """The best strategy that a budget of seconds, of proposals in all chains together, or of both finds.

    It begins with what suits the method unless `initial` says otherwise: baselines or strategies. It ends early where
    half of the budget brings nothing, and Ctrl-C ends it with what it has. The same seed and number
    of chains give the same result unless time ends it. `temperature` is the first one, as a share of the cost. The
    engine changes how long proposals take, not what is found: `full` and `delta` are the paper's. What
    by its simulated peak does not fit into a device's memory is never returned unless `memory_limit` is False;
    SoapstoneError where nothing that fits is found. With `sharding` it also looks for parameters that their holders
    should share, and with `recompute`, where some start does not fit, for ops to recompute in backward.
    """
    check_arguments(budget, proposals, seed, method, chains, temperature, engine)
    if progress is not None and not callable(progress):
        raise SoapstoneError(f"progress={shortened(progress)} cannot be called; give a function of one Progress")
    report = progress or (lambda _: None)
    problem = Problem(
        graph,
        topology,
        training=training,
        memory_limit=memory_limit,
        sharding=sharding,
        recompute=recompute,
        progress=lambda share: report(Progress("asking for costs", share)),
    )
    groups = levels(graph)
    walkers: list[Chain] = []
    starts: list[Start] = []

    def run(chain: Chain) -> None:
        first = chain.place % len(starts)
        own = [*starts[first:], *starts[:first]]
        chain.go(own[0](chain, groups[-1]))  # so that there is a best, however short the time
        METHODS[method](chain, groups, own, TEMPERATURES[method] if temperature is None else temperature)

    def stop() -> None:
        for chain in walkers:
            chain.native.stop()

    with interrupts(stop) as interrupt:
        deadline = _StartDeadline(topology, budget if proposals is None else None, report, interrupt)
        starts += _starts(problem, INITIAL[method] if initial is None else initial, groups, deadline)
        if budget is not None:
            budget = max(budget - deadline.seconds, budget / 2)
        walkers += _walkers(problem, _budgets(budget, proposals, chains), seed, engine)
        if interrupt.happened:
            stop()
        _run_all(run, walkers, report, stop)
        return _result(problem, walkers, interrupt)


def check_arguments(
    budget: float | None,
    proposals: int | None,
    seed: int,
    method: str,
    chains: int,
    temperature: float | None = None,
    engine: str = FASTEST,
) -> None:
    """Raise SoapstoneError unless a search takes these."""

    def refuse(name: str, given: object, wanted: str) -> None:
        raise SoapstoneError(f"{name}={shortened(given)} is not {wanted}")

    if budget is None and proposals is None:
        raise SoapstoneError("a search without a budget has no end; give seconds as budget=, or proposals=")
    check_budget(budget)
    if proposals is not None and not (type(proposals) is int and 0 < proposals < NEVER):
        refuse("proposals", proposals, "a whole number above 0; None means no limit")
    if type(seed) is not int or abs(seed) >= 2**63:
        refuse("seed", seed, "a whole number of at most 63 bits")
    if not isinstance(method, str) or method not in METHODS:
        refuse("method", method, f"a way to search; use {' or '.join(METHODS)}")
    if type(chains) is not int or not 0 < chains <= 256:
        refuse("chains", chains, "a whole number from 1 to 256")
    if temperature is not None and not (type(temperature) in (int, float) and 1e-12 <= temperature < inf):
        refuse("temperature", temperature, "a share of the cost; use one such as 5e-4")
    if not isinstance(engine, str) or engine not in ENGINES:
        refuse("engine", engine, f"a way to simulate; use {', '.join(ENGINES)}")


def _walkers(problem: Problem, budgets: Sequence[Budget], seed: int, engine: str) -> list[Chain]:
    """A chain for each budget, with random numbers of its own."""
    seeds = [f"{seed} {place}" for place in range(len(budgets))]
    return [
        Chain(problem.chain(own, engine), problem.options, budget, seed=own, place=place)
        for place, (budget, own) in enumerate(zip(budgets, seeds))
    ]


def _budgets(seconds: float | None, proposals: int | None, chains: int) -> list[Budget]:
    """One for each chain that has anything to spend."""
    time = inf if seconds is None else seconds
    if proposals is None:
        return [Budget(time)] * chains
    each, more = divmod(proposals, chains)
    return [Budget(time, each + (number < more)) for number in range(min(chains, proposals))]


def _starts(
    problem: Problem, initial: str | Strategy | Sequence[str | Strategy], levels: list[Groups], deadline: _StartDeadline
) -> list[Start]:
    """The initial strategies, the fastest first; random ones come last and are drawn when it is their turn. OptCNN's is
    among them if it is found in time."""
    given: list[list[Native]] = []
    drawn: list[Start] = []
    if isinstance(initial, str | Strategy):
        initial = [initial]
    known = ", ".join((*BASELINES, *(name for name in INITIAL["soapstone"] if name not in BASELINES)))
    if not isinstance(initial, Sequence):
        raise SoapstoneError(f"initial={shortened(initial)} is no list; use some of {known}")
    for start in initial:
        if isinstance(start, Strategy):
            start.check(problem.graph, problem.topology)
            given.append(_uncut(start))
        elif start == "random":
            drawn.append(Chain.at_random)
        elif isinstance(start, str) and start in BASELINES:
            given.append(_uncut(BASELINES[start](problem.graph, problem.topology)))
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
            raise SoapstoneError(f"initial={shortened(start)} is no strategy; use {known}, or a Strategy")
    if not given and not drawn and deadline.is_interrupted():
        raise KeyboardInterrupt
    if not given and not drawn:
        raise SoapstoneError(f"a search needs an initial strategy; use {known}, or a Strategy")
    ranked = _ranked(problem, _with_and_without_checkpoints(problem, given), deadline)
    for native in ranked:
        for groups in levels:
            problem.ask(tied(native, groups))
    return [*map(_fixed, ranked), *drawn]


def _uncut(strategy: Strategy) -> list[Native]:
    if strategy.microbatches > 1:
        count = strategy.microbatches
        raise SoapstoneError(f"a search starts from strategies with one microbatch, this one has {count}; use another")
    return strategy.native


def _with_and_without_checkpoints(problem: Problem, given: list[list[Native]]) -> list[list[Native]]:
    """A model that checkpoints layers may have room enough to keep what they make: else it is recomputed."""
    if not any(op.recompute for op in problem.graph.ops):
        return given
    kept = [[(degrees, devices, shard, False, w) for degrees, devices, shard, _, w in native] for native in given]
    if not problem.recompute:
        return kept
    return [*kept, *(native for native, other in zip(given, kept) if problem.cost(other)[0])]


def _ranked(problem: Problem, given: Sequence[list[Native]], deadline: _StartDeadline) -> list[list[Native]]:
    """The fastest first, of those that fit. Where some do not, they get the least recomputation with which they do, and
    ops may be recomputed from then on."""
    costs: list[tuple[bool, int]] = []
    for number, native in enumerate(given):
        deadline.tell(number / len(given))
        costs.append(problem.cost(native))
    problem.options.recomputes = problem.recompute and any(not_fitting for not_fitting, _ in costs)
    if not problem.options.recomputes:
        return [given[i] for i in sorted(range(len(given)), key=lambda i: costs[i])]
    found: list[tuple[tuple[bool, int], list[Native]]] = []
    for number, (native, cost) in enumerate(zip(given, costs)):
        deadline.tell(number / len(given))
        less = problem.recomputed(native) if cost[0] and not deadline.is_interrupted() else native
        found.append((cost if less == native else problem.cost(less), less))
    return [native for _, native in sorted(found, key=lambda pair: pair[0])]


class _StartDeadline:
    """How long OptCNN may look for a start: a share of the seconds, or for its first few options."""

    def __init__(
        self, topology: Topology, budget: float | None, report: Callable[[Progress], None], interrupt: Interrupt
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
            self._report(Progress("looking for a start", share))


def _by_optcnn(problem: Problem, tyings: Sequence[Groups], deadline: _StartDeadline, alone: bool) -> list[list[Native]]:
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


def _run_all(
    run: Callable[[Chain], None], chains: list[Chain], report: Callable[[Progress], None], stop: Callable[[], None]
) -> None:
    """Run every chain on a thread of its own."""
    with ThreadPoolExecutor(len(chains)) as pool:
        futures = [pool.submit(run, chain) for chain in chains]
        left: set[Future[None]] = set(futures)
        try:
            while left and not any(future.exception() for future in futures if future.done()):
                _, left = wait(left, TICK)
                report(_progress(chains))
        finally:
            if left:
                stop()
            wait(futures)
    with translated_errors():
        for future in futures:
            future.result()


def _progress(chains: list[Chain]) -> Progress:
    overflow, makespan = min(chain.cost for chain in chains)
    return Progress(
        "searching",
        max(chain.share for chain in chains),
        sum(chain.native.num_proposals for chain in chains),
        max(chain.native.seconds for chain in chains),
        None if overflow else makespan * 1e-9,
    )


def _result(problem: Problem, chains: list[Chain], interrupt: Interrupt) -> SearchResult:
    best = min(chains, key=lambda chain: chain.cost)
    if best.native.best_overflow:
        raise SoapstoneError(_too_large(problem, best))
    return SearchResult(
        problem.strategy(best.native.best),
        best.native.best_makespan * 1e-9,
        tuple(Improvement(count, seconds, ns * 1e-9) for count, seconds, ns in best.native.history),
        sum(chain.native.num_proposals for chain in chains),
        max(chain.native.seconds for chain in chains),
        *best.locally_optimal,
        interrupt.happened,
    )


def _too_large(problem: Problem, best: Chain) -> str:
    peak = problem.played(best.native.best).peak(problem.num_states, problem.num_temporaries)
    needs = [int(n) + workspace_of(device) for n, device in zip(peak, problem.topology.devices)]
    pairs = [(n - device.memory, device) for n, device in zip(needs, problem.topology.devices)]
    over, device = max(pairs, key=lambda pair: pair[0])
    wanted, has = scaled(device.memory + over, "B"), scaled(device.memory, "B")
    return (
        f"no strategy that was found fits: the closest needs {wanted} on {device.name}, which has {has}, "
        f"{scaled(over, 'B')} too much; a smaller batch, more devices, bfloat16, or an optimizer with fewer states "
        "would help, and a longer search may; memory_limit=False (--no-memory-limit) searches without the limit"
    )
