"""Find a fast strategy: Markov chains over the space, each proposal judged by the simulator (section "Execution
Optimizer" of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic

from ..baselines import baseline, is_grid
from ..costs import PreparedCosts
from ..errors import SoapstoneError
from ..files import shortened
from ..graph import OperatorGraph
from ..simulator import ENGINES, FASTEST, Training
from ..strategy import Strategy
from ..topology import Topology
from .chain import NEVER, Budget, check_budget
from .cuts import Cuts
from .interrupts import interrupts
from .methods import METHODS, TEMPERATURES
from .outcome import Progress, SearchResult
from .problem import Problem, check_problem
from .rounds import Round, Rounds
from .starts import INITIAL, KNOWN, Initial

CUTS_SHARE = 0.15  # of the seconds, at most, to find how many microbatches are worth a search


def search(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    budget: float | None = 30.0,
    proposals: int | None = None,
    seed: int = 0,
    initial: Initial | None = None,
    method: str = "soapstone",
    chains: int = 1,
    memory_limit: bool = True,
    sharding: bool = True,
    recompute: bool = True,
    microbatches: int | None = None,
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
    `microbatches` says into how many the batch is cut; by default as many as the initial strategies have, and without
    any, those for which some pipeline is worth a search, each with its share of the budget.
    """
    check_arguments(budget, proposals, seed, method, chains, temperature, engine, microbatches)
    if progress is not None and not callable(progress):
        raise SoapstoneError(f"progress={shortened(progress)} cannot be called; give a function of one Progress")
    check_problem(graph, topology, training)
    hot = TEMPERATURES[method] if temperature is None else temperature
    running = Rounds(method, hot, engine, seed, chains, progress or (lambda _: None))
    make = partial(
        Problem,
        graph,
        topology,
        training=training,
        memory_limit=memory_limit,
        sharding=sharding,
        recompute=recompute,
        progress=lambda share: running.tell("asking for costs", share),
    )
    if initial is None and microbatches is None and isinstance(training.costs, PreparedCosts):
        microbatches = 1  # every other number of them would have to be measured first
    given = None if initial is None else _given(initial, graph, topology)
    count = _count_of(given, microbatches)
    first = Round(make(microbatches=count or 1), INITIAL[method] if given is None else given)
    with interrupts(running.stop) as running.interrupt:
        begun = monotonic()
        rounds = [first]
        if given is None and microbatches != 1 and method == "soapstone":
            rounds = _rounds(running, first, make, microbatches, budget if proposals is None else None)
        left = inf if budget is None else max(budget - (monotonic() - begun), budget / 2)
        running.run_all(rounds, Budget(left, NEVER if proposals is None else proposals))
        return running.result()


def _count_of(given: Sequence[str | Strategy] | None, wanted: int | None) -> int | None:
    """The number of microbatches, where it is known. Raises SoapstoneError where initial strategies have others."""
    counts = {each.microbatches for each in given or () if isinstance(each, Strategy)}
    if len(counts) > 1:
        have = " and ".join(map(str, sorted(counts)))
        raise SoapstoneError(f"initial strategies have {have} microbatches; a search wants all to have the same number")
    if wanted and counts and wanted not in counts:
        raise SoapstoneError(f"initial strategies have {counts.pop()} microbatches where {wanted} are asked for")
    return counts.pop() if counts else wanted if given is not None else None


def _rounds(
    running: Rounds, uncut: Round, make: partial[Problem], wanted: int | None, seconds: float | None
) -> list[Round]:
    """What is searched, one after the other: what is not cut, then the numbers of microbatches that are worth it; or
    the one that is wanted. Looking for them takes no more than a share of the seconds, where these count."""
    deadline = inf if seconds is None else monotonic() + CUTS_SHARE * seconds
    cuts = Cuts(
        uncut.problem,
        wanted,
        lambda: running.interrupt.happened or monotonic() > deadline,
        lambda share: running.tell("looking at pipelines", share),
    )
    found = [
        Round(partial(make, microbatches=starts[0].microbatches), starts, cost[1])
        for cost, starts in cuts.worth_a_search()
    ]
    if running.interrupt.happened and not wanted:
        return [uncut]
    return found if wanted else [uncut, *found]


def _given(initial: Initial, graph: OperatorGraph, topology: Topology) -> Sequence[str | Strategy]:
    """Pipelines that are named are made, since they say how many microbatches there are."""
    if isinstance(initial, str | Strategy):
        initial = [initial]
    if not isinstance(initial, Sequence):
        raise SoapstoneError(f"initial={shortened(initial)} is no list; use some of {KNOWN}")
    cut = (isinstance(each, str) and (each == "pipeline" or is_grid(each)) for each in initial)
    return [baseline(str(each), graph, topology) if named else each for each, named in zip(initial, cut)]


def check_arguments(
    budget: float | None,
    proposals: int | None,
    seed: int,
    method: str,
    chains: int,
    temperature: float | None = None,
    engine: str = FASTEST,
    microbatches: int | None = None,
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
    if microbatches is not None and not (type(microbatches) is int and microbatches > 0):
        refuse("microbatches", microbatches, "a whole number above 0; None looks for the best")
