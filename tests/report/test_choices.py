"""Why a strategy wins: every number is that of a simulation in which one choice is taken back."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.report.breakdown import breakdown_of
from soapstone.report.choices import compared, groups_of
from soapstone.report.layers import folds_of, layers_of, pattern_of
from soapstone.report.words import closing, lasting, placed, sentence, sooner, summary, telling
from soapstone.strategy import Configuration

from ..support.chains import Launching, with_hosts
from ..support.chains import graph_of as graph

P100 = ss.Topology.parse("p100:1x4")


def test_a_choice_is_worth_what_the_step_takes_longer_without_it() -> None:
    nmt = graph("nmt")
    data = ss.baselines.data_parallel(nmt, P100)
    ours = ss.simulate(nmt, P100, ss.baselines.expert(nmt, P100))
    comparison = compared(ours, data)
    assert {op for choice in comparison.choices for op in choice.ops} == {
        i for i, op in enumerate(nmt.ops) if ours.strategy[op.name] != data[op.name]
    }
    for choice in comparison.choices:
        names = [nmt.ops[i].name for i in choice.ops]
        without = ss.simulate(nmt, P100, ours.strategy.replace({name: data[name] for name in names}))
        assert choice.time == without.makespan_ns - ours.makespan_ns
        assert choice.gradients + choice.activations == without.bytes_moved - ours.bytes_moved
        assert choice.memory == max(without.peak_memory) - max(ours.peak_memory)
    assert list(comparison.choices) == sorted(comparison.choices, key=lambda choice: -choice.time)


def test_only_the_choices_worth_most_are_looked_at_closely() -> None:
    nmt = graph("nmt")
    ours = ss.simulate(nmt, P100, ss.baselines.expert(nmt, P100))
    data = ss.baselines.data_parallel(nmt, P100)
    whole, short = compared(ours, data), compared(ours, data, most=3)
    assert len(short.choices) == 3
    assert short.others == len(whole.choices) - 3
    least = min(abs(choice.time) for choice in short.choices)
    assert all(abs(c.time) <= least for c in whole.choices if c not in short.choices)


def test_what_is_too_much_to_simulate_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nmt = graph("nmt")
    ours = ss.simulate(nmt, P100, ss.baselines.random(nmt, P100, seed=1))
    data = ss.baselines.data_parallel(nmt, P100)
    monkeypatch.setattr("soapstone.report.choices.WORK", 5 * len(ours.tasks))
    monkeypatch.setattr("soapstone.report.choices.CLOSE_WORK", 3 * len(ours.tasks))
    short = compared(ours, data)
    assert short.choices == compared(ours, data).choices
    assert (len(short.choices), short.others) == (3, len(groups_of(ours.strategy, data)) - 3)
    assert f"{short.others} lesser choices are left out." in closing(short)


def test_choices_have_titles_of_their_own_and_a_sum() -> None:
    nmt = graph("nmt")
    ours = ss.simulate(nmt, P100, ss.baselines.random(nmt, P100, seed=1))
    comparison = compared(ours, ss.baselines.data_parallel(nmt, P100))
    titles = [choice.title for choice in comparison.choices]
    assert len(set(titles)) == len(titles)
    idle = replace(comparison, choices=tuple(replace(c, time=0) for c in comparison.choices[:2]), others=0)
    assert telling(idle) == []
    together = comparison.theirs.makespan_ns - comparison.ours.makespan_ns
    assert closing(idle) == ["2 choices change nothing.", f"All together: {sooner(together)}."]


def test_a_strategy_equals_itself() -> None:
    lenet = graph("lenet")
    data = ss.baselines.data_parallel(lenet, P100)
    comparison = compared(ss.simulate(lenet, P100, data), data)
    assert comparison.choices == ()
    assert summary(comparison)[0].startswith("This is data parallelism: a step takes ")


def dense() -> ss.OperatorGraph:
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
    targets = (torch.zeros(64, dtype=torch.int64),)
    return ss.capture(ss.Workload(model, (torch.zeros(64, 4096),), loss=F.cross_entropy, targets=targets))


def test_the_words_for_a_dense_layer() -> None:
    known = dense()
    data = ss.baselines.data_parallel(known, P100)
    four = Configuration({"channel": 4}, (0, 1, 2, 3))
    comparison = compared(ss.simulate(known, P100, data.replace({"0": four})), data)
    (choice,) = comparison.choices
    said = sentence(choice, comparison)
    assert said.startswith("0: channels split over 4 devices; saves ")
    assert "of gradient sums, costs " in said
    assert said.endswith("sooner")


@pytest.mark.parametrize(
    ("degrees", "devices", "said"),
    [
        ({}, (2,), "whole on gpu2"),
        ({"sample": 4}, (0, 1, 2, 3), "samples split over 4 devices"),
        ({"sample": 4}, (0, 1, 0, 1), "samples split in 4, on 2 devices"),
        ({"channel": 2, "sample": 2}, (0, 1, 2, 3), "samples split in 2 and channels split in 2, on 4 devices"),
        ({"sample": 2}, (1, 1), "samples split in 2, on gpu1"),
    ],
)
def test_how_an_op_is_placed(degrees: dict[str, int], devices: tuple[int, ...], said: str) -> None:
    op = next(op for op in graph("lenet").ops if op.kind == "linear")
    assert placed(Configuration(degrees, devices), op, P100) == said


def test_times_for_people() -> None:
    assert [lasting(ns) for ns in (7, 1_500, 61_000_000, 2_340_000_000)] == ["7 ns", "1.5 us", "61 ms", "2.34 s"]


def test_layers_and_folds_hold_every_op_once() -> None:
    for name in ("gpt2", "nmt", "inception-v3"):
        known = graph(name)
        strategy = ss.baselines.random(known, P100, seed=3)
        layers = layers_of(strategy)
        assert sorted(i for layer in layers for i in layer.ops) == list(range(len(known.ops)))
        assert all(strategy[known.ops[i].name] == layer.configuration for layer in layers for i in layer.ops)
        folded = [i for fold in folds_of(known, layers) for member in fold.members for i in member]
        assert len(folded) == len(set(folded))


def test_a_transformer_s_blocks_are_folded() -> None:
    gpt2 = graph("gpt2")
    layers = layers_of(ss.baselines.expert(gpt2, P100))
    (fold,) = folds_of(gpt2, layers)
    blocks = {layer.name.split(".")[1] for layer in layers if layer.name.startswith("blocks.")}
    assert len(fold.members) == len(blocks) > 1
    assert {pattern_of(layers[i].name) for i in fold.members[0]} == {
        pattern_of(layers[i].name) for i in fold.members[-1]
    }


def test_a_block_that_is_configured_otherwise_ends_the_fold() -> None:
    gpt2 = graph("gpt2")
    strategy = ss.baselines.expert(gpt2, P100)
    last = max(int(op.name.split(".")[1]) for op in gpt2.ops if op.name.startswith("blocks."))
    moved = strategy.replace({f"blocks.{last}.up": Configuration({}, (3,))})
    assert all(len(fold.members) <= last for fold in folds_of(gpt2, layers_of(moved)))


@pytest.mark.parametrize("strategy", ["data", "model", "expert"])
def test_the_parts_of_a_device_s_time_add_up(strategy: str) -> None:
    nmt = graph("nmt")
    for topology in (P100, ss.Topology.parse("cpu:2x2"), with_hosts(P100, 20_000)):
        has_hosts = topology.devices[0].send > 0
        training = ss.Training(Launching(2.0) if has_hosts else ss.AnalyticCosts())
        sim = ss.simulate(nmt, topology, ss.baselines.BASELINES[strategy](nmt, topology), training=training)
        found = breakdown_of(sim)
        assert sum(found.launching) > 0 or not has_hosts
        for device in range(4):
            rows = [getattr(found, name)[device] for name in found.__dataclass_fields__]
            assert min(rows) >= 0
            assert sum(rows) == sim.makespan_ns
        assert sum(found.compute) == round(sim.compute_time * 1e9)


def test_ops_that_share_a_weight_are_one_choice_where_they_shard_it() -> None:
    lstm, topology = graph("lstm"), ss.Topology.parse("p100:1x4")
    data, fsdp = ss.baselines.data_parallel(lstm, topology), ss.baselines.fsdp(lstm, topology)
    found = compared(ss.simulate(lstm, topology, fsdp), data)
    sharers = next(group for group in lstm.sharers if lstm.index("embed") in group)
    assert lstm.index("project") in sharers
    assert [choice for choice in found.choices if set(sharers) <= set(choice.ops)]
