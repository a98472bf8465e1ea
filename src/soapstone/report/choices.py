"""Why a strategy is as fast as it is: what it does otherwise than another one, layer by layer, and what each of these
choices is worth. Each number comes from a simulation in which just that choice is taken back."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..simulator import Simulation, Simulator, simulate
from ..strategy import Configuration, Strategy
from .layers import layers_of, pattern_of

MOST = 24  # choices that are looked at closely
WORK = 40_000_000  # tasks that are simulated, one choice after the other
CLOSE_WORK = 1_000_000  # tasks of the choices that are looked at closely


@dataclass(frozen=True)
class Choice:
    """Ops that are configured alike in both strategies, but not as in the other one. Differences are what taking the
    choice back would add: to the step's time, to what gradient sums, with gathers of weights, and activations move, to
    the fullest device."""

    title: str
    ops: tuple[int, ...]
    ours: Configuration
    theirs: Configuration
    time: int  # ns
    gradients: int
    activations: int
    memory: int


@dataclass(frozen=True)
class Comparison:
    """Two strategies, played, and what sets the first apart; those worth most come first. `others` are worth less, or
    were not looked at, for they compute less and there are too many tasks to simulate them all."""

    ours: Simulation
    theirs: Simulation
    choices: tuple[Choice, ...]
    others: int


def compared(
    ours: Simulation, other: Strategy, *, most: int = MOST, progress: Callable[[float], None] = lambda share: None
) -> Comparison:
    """What `ours` does otherwise than another strategy for the same graph and topology."""
    strategy, training = ours.strategy, ours.training
    all_groups = groups_of(strategy, other)
    groups = largest(strategy, all_groups, max(1, WORK // len(ours.tasks)))
    most = min(most, max(1, CLOSE_WORK // len(ours.tasks)))
    times: dict[tuple[int, ...], int] = {}
    makespan = _player(ours)
    for done, ops in enumerate(groups.values(), 1):
        times[ops] = makespan(_taken_back(strategy, other, ops)) - ours.makespan_ns
        progress(0.5 * done / len(groups))
    ranked = sorted(groups.items(), key=lambda item: (-abs(times[item[1]]), item[1]))
    found, titles = [], _titles(strategy, [(pattern, ops) for (pattern, _, _), ops in ranked[:most]])
    for done, ((_, mine, its), ops) in enumerate(ranked[:most], 1):
        changed = strategy.replace(_taken_back(strategy, other, ops))
        without = simulate(ours.graph, ours.topology, changed, training=training)
        assert without.makespan_ns - ours.makespan_ns == times[ops]
        found.append(Choice(titles[ops], ops, mine, its, times[ops], *_differences(without, ours)))
        progress(0.5 + 0.5 * done / min(len(ranked), most))
    theirs = simulate(ours.graph, ours.topology, other, training=training)
    found.sort(key=lambda choice: -choice.time)
    return Comparison(ours, theirs, tuple(found), len(all_groups) - len(found))


Changes = dict[str, Configuration]


def _player(ours: Simulation) -> Callable[[Changes], int]:
    """What tells the makespan with some changes, in ns."""
    graph, topology, strategy, training = ours.graph, ours.topology, ours.strategy, ours.training
    simulator = Simulator(graph, topology, strategy, training=training)

    def makespan(changes: Changes) -> int:
        found = simulator.propose(changes) or 0
        simulator.reject()
        return found

    return makespan


def _taken_back(strategy: Strategy, other: Strategy, ops: tuple[int, ...]) -> Changes:
    """As the other has these ops, as far as a microbatch can be split so."""
    given = taken_back(other, ops).items()
    return {name: configuration.fitted(strategy.played.op(name)) for name, configuration in given}


_Key = tuple[str, Configuration, Configuration]
Groups = dict[_Key, tuple[int, ...]]


def groups_of(strategy: Strategy, other: Strategy) -> Groups:
    """Layers that differ, with those of other blocks that differ in the same way."""
    found: dict[_Key, list[int]] = defaultdict(list)
    ops = strategy.graph.ops
    for layer in layers_of(strategy):
        for i in layer.ops:
            mine, its = strategy[ops[i].name], other[ops[i].name]
            if mine != its:
                found[pattern_of(layer.name), mine, its].append(i)
    return {key: tuple(sorted(members)) for key, members in _joined(strategy, other, found).items()}


def _joined(strategy: Strategy, other: Strategy, groups: dict[_Key, list[int]]) -> dict[_Key, list[int]]:
    """Groups that share a parameter are one where they shard it otherwise: only together can they take that back."""
    graph = strategy.graph
    for sharers in graph.sharers:
        name = graph.ops[sharers[0]].name
        if len(sharers) > 1 and strategy[name].shard != other[name].shard:
            first, *rest = [key for key, members in groups.items() if not set(sharers).isdisjoint(members)]
            for key in rest:
                groups[first] += groups.pop(key)
    return groups


def largest(strategy: Strategy, groups: Groups, count: int) -> Groups:
    """Those that compute most."""
    flops = {ops: sum(strategy.graph.ops[i].flops for i in ops) for ops in groups.values()}
    kept = sorted(groups.items(), key=lambda item: (-flops[item[1]], item[1]))[:count]
    return dict(kept)


def _titles(strategy: Strategy, groups: Sequence[tuple[str, tuple[int, ...]]]) -> dict[tuple[int, ...], str]:
    """A title for each group; those that would share one are told apart by the kinds of their ops, or their names."""
    known = strategy.graph.ops
    plain = {ops: _title(strategy, pattern, ops) for pattern, ops in groups}
    with_kind = {ops: f"{known[ops[0]].kind} of {title}" for ops, title in plain.items()}
    named = {ops: listed_layers([known[i].name for i in ops]) for ops in plain}
    uses = Counter([*plain.values(), *with_kind.values()])
    return {ops: next((t for t in (plain[ops], with_kind[ops]) if uses[t] == 1), named[ops]) for ops in plain}


def _title(strategy: Strategy, pattern: str, ops: tuple[int, ...]) -> str:
    """The layer's name where it is only one; for several what their names have in common, where that says enough."""
    layers = list(dict.fromkeys(re.sub(r"_\d+$", "", strategy.graph.ops[i].layer) for i in ops))
    return pattern if len(layers) > 3 and pattern.count("*") == 1 else listed_layers(layers)


def listed_layers(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def taken_back(other: Strategy, ops: tuple[int, ...]) -> Changes:
    names = [other.graph.ops[i].name for i in ops]
    return {name: other[name] for name in names}


def _differences(without: Simulation, ours: Simulation) -> tuple[int, int, int]:
    gradients = sum(without.moved[kind] - ours.moved[kind] for kind in ("sync", "gather"))
    activations = without.bytes_moved - ours.bytes_moved - gradients
    return gradients, activations, max(without.peak_memory) - max(ours.peak_memory)
