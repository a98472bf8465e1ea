"""The Markov chains: what they find, that a seed decides it, how they end, and what they refuse."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import soapstone as ss
from soapstone import _core
from soapstone.errors import SoapstoneError
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph
from soapstone.searching import Progress
from soapstone.searching.problem import Problem
from soapstone.searching.tying import levels
from soapstone.strategy import SHARDS
from tests.support.chains import Launching, graph_of
from tests.support.seeds import cases

MODELS = ("lenet", "inception-v3", "resnet-101", "rnnlm", "nmt", "gpt2", "shared")
TOPOLOGIES = ("p100:1x4", "p100:1x3", "k80:2x2", "h100:1x2+a100:1x2")
FOREVER = (2**62, 1e300)


def case(name: str, text: str) -> tuple[OperatorGraph, ss.Topology]:
    return graph_of(name), ss.Topology.parse(text)


def makespan(strategy: ss.Strategy) -> float:
    return ss.simulate(strategy.graph, strategy.topology, strategy).makespan


@pytest.mark.parametrize("text", cases(TOPOLOGIES, long=["p100:1x4"]))
@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_the_strategy_takes_and_beats_the_baselines(name: str, text: str) -> None:
    graph, topology = case(name, text)
    result = ss.search(graph, topology, proposals=400, budget=None)
    assert result.makespan == makespan(result.strategy)
    for make in ss.baselines.BASELINES.values():
        assert result.makespan <= makespan(make(graph, topology))
    spans = [step.makespan for step in result.history]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == result.makespan
    space = ss.Space(graph, topology)
    unsharded = {name: replace(configuration, shard="none") for name, configuration in result.strategy.items()}
    assert all(unsharded[op.name] in space.configurations(op.name) for op in graph.ops)


def test_a_start_that_ties_cannot_hold_is_seen_as_it_is() -> None:
    """Blocks tie all layers of a transformer, which model parallelism puts on different devices."""
    graph, topology = case("gpt2", "p100:1x4")
    start = ss.baselines.model_parallel(graph, topology)
    result = ss.search(graph, topology, proposals=1, budget=None, initial=[start])
    assert result.history[0].makespan == makespan(start)


@pytest.mark.parametrize("method", ["soapstone", "paper"])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_seed_and_a_number_of_chains_decide_the_result(method: str, chains: int) -> None:
    graph, topology = case("nmt", "p100:1x4")

    def found(seed: int) -> tuple[Any, ...]:
        result = ss.search(graph, topology, proposals=600, budget=None, seed=seed, chains=chains, method=method)
        steps = [(step.proposals, step.makespan) for step in result.history]
        return dict(result.strategy), result.makespan, result.proposals, steps

    assert found(1) == found(1)
    assert found(1)[3] != found(2)[3]


@pytest.mark.parametrize("method", ["soapstone", "paper"])
@pytest.mark.parametrize("share", [2.0, 0.8], ids=["fits", "must shrink"])
def test_every_engine_goes_the_same_way(method: str, share: float) -> None:
    graph, roomy = case("nmt", "p100:1x4")
    topology = small_memory(roomy, share, graph)

    def found(engine: str) -> tuple[Any, ...]:
        result = ss.search(graph, topology, proposals=800, budget=None, method=method, initial="data", engine=engine)
        return dict(result.strategy), [(step.proposals, step.makespan) for step in result.history]

    ours = found("resume")
    assert len(ours[1]) > 5
    assert found("delta") == ours
    assert found("full") == ours


@pytest.mark.parametrize("name", ["lenet", "rnnlm", "shared"])
def test_a_local_optimum_has_no_better_neighbour(name: str) -> None:
    graph, topology = case(name, "p100:1x2")
    result = ss.search(graph, topology, budget=None, proposals=20_000)
    space = ss.Space(graph, topology)
    assert result.locally_optimal == "yes"
    sizes = [len(space.configurations(op.name)) for op in graph.ops]
    shards = [len(SHARDS) * bool(trained) for trained in graph.trains]
    assert result.neighbours == sum(size + more for size, more in zip(sizes, shards) if size > 1)
    simulator = ss.Simulator(graph, topology, result.strategy)

    def is_better(changes: dict[str, ss.Configuration]) -> bool:
        return simulator.propose(changes, limit=simulator.makespan_ns - 1) is not None

    for op in graph.ops:
        shard = result.strategy[op.name].shard
        for configuration in space.configurations(op.name):
            assert not is_better({op.name: replace(configuration, shard=shard)})
    for sharers in graph.sharers:
        names = [graph.ops[i].name for i in sharers]
        for shard in SHARDS:
            assert not is_better({name: replace(result.strategy[name], shard=shard) for name in names})


def test_it_begins_with_what_is_sharded_too() -> None:
    graph, topology = case("gpt2", "p100:1x4")
    memory = ss.simulate(graph, topology, ss.baselines.fsdp(graph, topology)).memory
    tight = replace(
        topology, devices=tuple(replace(d, memory=int(need)) for d, need in zip(topology.devices, memory.peak))
    )
    begin = partial(ss.search, graph, tight, proposals=1, budget=None, initial=["data", "sharded"], recompute=False)
    assert ss.simulate(graph, tight, begin().strategy).fits
    with pytest.raises(SoapstoneError, match="no strategy that was found fits"):
        begin(sharding=False)


def test_a_result_that_is_no_local_optimum_says_so() -> None:
    graph, topology = case("nmt", "p100:1x4")
    arguments: dict[str, Any] = {"budget": None, "initial": ["data"], "method": "paper"}
    spent = ss.search(graph, topology, proposals=50, **arguments)
    assert (spent.locally_optimal, spent.neighbours) == ("budget ended", 0)
    few = ss.search(*case("lenet", "p100:1x2"), proposals=100_000, temperature=1e-9, **arguments)
    assert few.proposals < 100_000  # half of the budget brought nothing
    assert few.locally_optimal in ("yes", "no")
    assert few.neighbours > 0


def test_metropolis_accepts_as_often_as_it_should() -> None:
    """A chain whose only move chooses between two configurations visits them as p ~ c^(-1/tau) says."""
    graph, topology = case("lenet", "p100:1x2")
    problem = Problem(graph, topology, training=ss.Training(Launching(0), bucket_bytes=0))
    start = ss.baselines.data_parallel(graph, topology).native
    op = next(i for i, o in enumerate(graph.ops) if o.kind == "linear")
    table = [start[op], ([1] * len(graph.ops[op].dims), [0], 0, False, 0)]
    costs = []
    for entry in table:
        strategy = [*start]
        strategy[op] = entry
        costs.append(problem.played(strategy).makespan)
    tau = abs(costs[1] - costs[0]) / min(costs)
    native = _core.Chain(graph.native, problem.machine, problem.times.native, [table], [], 2, 7)
    native.go(start)
    visits = [0, 0]
    for _ in range(4000):
        native.walk([([op], 0, [], False, [], False)], tau, tau, True, (1, 1e300, *FOREVER))
        visits[native.makespan == costs[1]] += 1
    expected = costs[0] ** (-1 / tau) / (costs[0] ** (-1 / tau) + costs[1] ** (-1 / tau))
    assert visits[0] / 4000 == pytest.approx(expected, abs=0.04)


def test_no_accepted_strategy_passes_the_memory_limit() -> None:
    graph, topology = case("gpt2", "p100:1x4")
    start = ss.baselines.data_parallel(graph, topology)
    memory = ss.simulate(graph, topology, start).memory
    need = memory.peak - memory.workspace
    problem = Problem(graph, topology)
    limit = [int(max(need) * 1.02)] * 4
    native = _core.Chain(graph.native, problem.machine, problem.times.native, problem.options.tables, limit, 2, 3, 1)
    native.go(start.native)
    moves = problem.options.moves(levels(graph)[-1])
    refused = 0
    for _ in range(300):
        native.walk(moves, 0.1, 0.1, True, (1, 1e300, *FOREVER))
        held = problem.played(native.strategy).peak(2, 1)
        assert max(held) <= limit[0]
        refused += max(held) > max(need)
    assert native.best_overflow == 0
    assert refused  # it went to where the limit is near


def test_near_the_memory_limit_engines_refuse_the_same() -> None:
    """`full` looks at every device's whole peak; `resume` at bounds, and at the fullest device first."""
    graph, topology = case("gpt2", "p100:1x4")
    problem = Problem(graph, topology)
    problem.options.recomputes = True
    start = problem.recomputed(ss.baselines.fsdp(graph, topology).native)
    limit = [int(max(problem.played(start).peak(2, 1)) * 1.1)] * 4
    moves = problem.options.moves(levels(graph)[0])

    def walked(limit: list[int], engine: _core.Method) -> list[int]:
        tables = problem.options.tables
        native = _core.Chain(graph.native, problem.machine, problem.times.native, tables, limit, 2, 3, 1, engine)
        native.go(start)
        taken = []
        for _ in range(150):
            native.walk(moves, 0.2, 0.2, True, (1, 1e300, *FOREVER))
            taken.append(native.makespan)
        return taken

    near = walked(limit, _core.Method.resume)
    assert near == walked(limit, _core.Method.full)
    assert near != walked([], _core.Method.resume)  # some were refused for memory alone
    assert len(set(near)) > 10


def small_memory(topology: ss.Topology, share: float, graph: OperatorGraph) -> ss.Topology:
    """The topology with a share of the memory that data parallelism needs."""
    memory = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).memory
    need = int(max(memory.workspace) + share * max(memory.peak - memory.workspace))  # libraries take theirs anyway
    return replace(topology, devices=tuple(replace(device, memory=need) for device in topology.devices))


def test_from_what_does_not_fit_it_finds_what_does() -> None:
    graph, topology = case("nmt", "p100:1x4")
    tight = small_memory(topology, 0.8, graph)
    result = ss.search(graph, tight, proposals=3000, budget=None, initial=["data"])
    assert not ss.simulate(graph, tight, ss.baselines.data_parallel(graph, tight)).fits
    assert ss.simulate(graph, tight, result.strategy).fits


def test_where_nothing_fits_the_error_says_by_how_much() -> None:
    graph, topology = case("nmt", "p100:1x2")
    tiny = small_memory(topology, 0.01, graph)
    with pytest.raises(ss.SoapstoneError, match=r"needs .* on gpu\d, which has .* too much; a smaller batch"):
        ss.search(graph, tiny, proposals=300, budget=None)
    assert ss.search(graph, tiny, proposals=300, budget=None, memory_limit=False).makespan > 0


def test_progress_is_told_and_may_stop_the_search() -> None:
    graph, topology = case("rnnlm", "p100:1x4")
    told: list[Progress] = []
    ss.search(graph, topology, proposals=300, budget=None, progress=told.append)
    assert {step.phase for step in told} == {"asking for costs", "looking at pipelines", "searching"}
    assert told[-1].proposals == 300
    assert told[-1].share == 1.0

    class EnoughError(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.proposals:
            raise EnoughError

    with pytest.raises(EnoughError):
        ss.search(graph, topology, budget=60.0, progress=stop)


def test_an_initial_strategy_may_be_any() -> None:
    graph, topology = case("rnnlm", "p100:1x4")
    wild = ss.baselines.random(graph, topology, seed=3)
    result = ss.search(graph, topology, proposals=1, budget=None, initial=[wild])
    assert result.history[0].makespan <= makespan(wild)


def test_an_initial_strategy_with_degrees_of_its_own() -> None:
    graph, topology = case("rnnlm", "p100:1x4")
    thirds = {}
    for op in graph.ops[::2]:
        dim = next((d.name for d in op.dims if d.splittable and d.size >= 3), None)
        if dim is not None:
            thirds[op.name] = ss.Configuration({dim: 3}, (0, 1, 2))
    start = ss.baselines.data_parallel(graph, topology).replace(thirds)
    result = ss.search(graph, topology, proposals=50, budget=None, initial=start)
    assert result.history[0].makespan == makespan(start)
    assert result.makespan <= makespan(start)


@pytest.mark.parametrize("method", ["soapstone", "paper"])
def test_one_device_leaves_nothing_to_search(method: str) -> None:
    result = ss.search(*case("lenet", "cpu:1x1"), proposals=100, budget=None, method=method)
    assert (result.locally_optimal, result.proposals) == ("yes", 0)


@pytest.mark.parametrize("method", ["soapstone", "paper"])
def test_the_shortest_budget_gives_a_strategy(method: str) -> None:
    graph, topology = case("nmt", "p100:1x4")
    assert ss.search(graph, topology, budget=1e-9, chains=5, method=method).makespan > 0
    for proposals in (1, 10):
        result = ss.search(graph, topology, proposals=proposals, budget=None, chains=4, method=method)
        assert result.proposals == proposals


def test_the_paper_walks_from_every_start() -> None:
    graph, topology = case("lenet", "p100:1x4")
    result = ss.search(graph, topology, proposals=4000, budget=None, method="paper")
    assert result.proposals > 4 * 4000 // 5 - 1500


def test_the_paper_gives_up_on_a_start_after_half_of_its_share() -> None:
    graph, topology = case("lenet", "p100:1x2")
    best = ss.search(graph, topology, proposals=20_000, budget=None).strategy
    result = ss.search(
        graph, topology, proposals=4000, budget=None, method="paper", initial=[best, best], temperature=1e-12
    )
    neighbours = result.neighbours if result.locally_optimal != "budget ended" else 4000
    assert result.proposals <= 2 * 1000 + neighbours


def test_the_paper_puts_any_part_on_any_device_and_splits_no_sum() -> None:
    graph, topology = case("lenet", "p100:1x4")
    space = ss.Space(graph, topology)
    found = ss.search(graph, topology, proposals=300, budget=None, method="paper", initial="random", temperature=1.0)
    chosen = [(op, found.strategy[op.name]) for op in graph.ops]
    assert any(configuration not in space.configurations(op.name) for op, configuration in chosen)
    for seed in range(5):
        walked = ss.search(graph, topology, proposals=500, budget=None, method="paper", initial="data", seed=seed)
        for op in graph.ops:
            summed = {dim.name for dim in op.dims if dim.extra and dim.kind != "sample"}
            assert not summed & walked.strategy[op.name].degrees.keys()


def test_everything_on_one_device_is_among_the_starts() -> None:
    graph, topology = case("shared", "h100:1x1+k80:1x2")
    one = ss.Strategy(graph, topology, {op.name: ss.Configuration({}, (0,)) for op in graph.ops})
    assert ss.search(graph, topology, proposals=1, budget=None).makespan <= makespan(one)


def test_what_progress_raises_is_its_own() -> None:
    def fail(_: Progress) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        ss.search(*case("lenet", "p100:1x2"), proposals=10, budget=None, progress=fail)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no end": ({"budget": None}, "a search without a budget has no end"),
    "no time": ({"budget": 0}, "budget=0 is not a number of seconds above 0"),
    "endless time": ({"budget": float("nan")}, "budget=nan is not a number of seconds"),
    "half a proposal": ({"proposals": 0.5}, "proposals=0.5 is not a whole number above 0"),
    "a seed in words": ({"seed": "one"}, "seed='one' is not a whole number"),
    "no such method": ({"method": "fast"}, "method='fast' is not a way to search; use soapstone or paper"),
    "no such engine": ({"engine": "slow"}, "engine='slow' is not a way to simulate; use full, resume, delta"),
    "no chains": ({"chains": 0}, "chains=0 is not a whole number from 1"),
    "frozen": ({"temperature": 0.0}, "temperature=0.0 is not a share"),
    "no start": ({"initial": []}, "a search needs an initial strategy"),
    "an unknown start": ({"initial": ["best"]}, "initial='best' is no strategy"),
    "an unknown optimizer": ({"training": ss.Training(optimizer="lion")}, "no costs for optimizer 'lion'"),
    "no list of starts": ({"initial": 5}, "initial=5 is no list"),
    "no function": ({"progress": 3}, "progress=3 cannot be called"),
    "a list of methods": ({"method": ["paper"]}, "method=['paper'] is not a way to search"),
    "an endless seed": ({"seed": 10**5000}, "seed="),
    "no training": ({"training": 3}, "training=3 does not say how to train"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_arguments_get_a_sentence(name: str) -> None:
    arguments, sentence = WRONG[name]
    with pytest.raises(ss.SoapstoneError) as raised:
        ss.search(*case("lenet", "p100:1x2"), **arguments)
    assert str(raised.value).startswith(sentence)


def test_a_search_needs_a_graph_and_a_topology() -> None:
    wrong: Callable[..., object] = ss.search
    with pytest.raises(ss.SoapstoneError, match="a search needs a graph and a topology; 'p100:1x2' is neither"):
        wrong(graph_of("lenet"), "p100:1x2")


def test_layers_and_blocks_are_tied() -> None:
    layers, ops = levels(graph_of("rnnlm"))
    names = [{graph_of("rnnlm").ops[i].layer for i in group} for group in layers if len(group) > 1]
    assert {"stack.cells.0"} in names
    assert {"stack.cells.1"} in names
    assert len(ops) == len(graph_of("rnnlm").ops)
    assert sorted(i for group in layers for i in group) == list(range(len(ops)))
    blocks, ops = levels(graph_of("gpt2"))
    assert len(blocks) < len(ops)
    for group in blocks:
        assert len({graph_of("gpt2").alike[i] for i in group}) == 1


@pytest.mark.parametrize(
    ("model", "text"), [pytest.param("resnet-101", "p100:4x4", marks=pytest.mark.long), ("inception-v3", "k80:1x4")]
)
def test_where_the_bound_does_not_decide_the_peak_does(model: str, text: str) -> None:
    """Memory between data parallelism's peak and its bound: the default search finds something, and it fits."""
    topology = ss.Topology.parse(text)
    graph = load_graph(Request(model, 64 * topology.num_devices))
    memory = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).memory
    assert (memory.peak < [device.memory for device in topology.devices]).all()
    middle = int(memory.peak.max() * 1.02)
    assert middle < memory.bound.max()
    tight = replace(topology, devices=tuple(replace(device, memory=middle) for device in topology.devices))
    for cluster in (topology, tight):
        result = ss.search(graph, cluster, proposals=40, budget=None)
        assert ss.simulate(graph, cluster, result.strategy).fits


def test_where_nodes_are_far_apart_it_begins_on_one_of_them() -> None:
    graph, topology = graph_of("rnnlm"), ss.Topology.parse("p100_flexflow:2x2")
    data, model, _ = Problem(graph, topology).on_one_node()
    assert {device for native in (data, model) for _, devices, *_ in native for device in devices} == {0, 1}
    inside = ss.Topology.parse("p100_flexflow:1x2")
    assert data == ss.baselines.data_parallel(graph, inside).native
    assert Problem(graph, inside).on_one_node() == []
    alone = ss.search(graph, topology, proposals=1, budget=None, initial="node").makespan
    assert alone <= ss.simulate(graph, inside, ss.baselines.model_parallel(graph, inside)).makespan


def test_ctrl_c_while_it_looks_for_a_start_keeps_the_best_one() -> None:
    graph, topology = graph_of("nmt"), ss.Topology.parse("k80:16x4")
    phases: list[str] = []

    def press(now: Progress) -> None:
        phases.append(now.phase)
        if now.phase == "looking for a start":
            signal.raise_signal(signal.SIGINT)

    found = ss.search(graph, topology, budget=200, progress=press)
    assert found.interrupted
    assert phases.count("looking for a start") == 1
    assert found.makespan <= ss.simulate(graph, topology, ss.baselines.expert(graph, topology)).makespan
