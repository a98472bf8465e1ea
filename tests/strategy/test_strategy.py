"""Strategies: what is legal, what comes back from a file, and the baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from tests.support.models import CASES, captured

TOPOLOGY = ss.Topology.parse("cpu:1x4")


@cache
def graph() -> ss.OperatorGraph:
    return ss.capture(CASES["cnn"].workload())


def test_data_parallelism_splits_the_sample_dim_and_nothing_else() -> None:
    strategy = ss.baselines.data_parallel(graph(), TOPOLOGY)
    assert strategy["stem"] == ss.Configuration({"sample": 4}, (0, 1, 2, 3))
    assert strategy["cross_entropy"] == ss.Configuration({"sample": 4}, (0, 1, 2, 3))
    wide = ss.baselines.data_parallel(graph(), ss.Topology.parse("cpu:1x8"))
    assert wide["stem"] == ss.Configuration({"sample": 5}, (0, 1, 2, 3, 4))


def test_data_parallelism_splits_the_loss_of_batch_and_length_folded_into_one() -> None:
    strategy = ss.baselines.data_parallel(captured("gpt"), TOPOLOGY)
    assert strategy["loss_mean"] == ss.Configuration({"sample": 4}, (0, 1, 2, 3))


def test_random_strategies_come_from_their_seed_and_cover_the_space() -> None:
    one, same, other = (ss.baselines.random(graph(), TOPOLOGY, seed=seed) for seed in (1, 1, 2))
    assert dict(one) == dict(same) != dict(other)
    seen = {
        name for seed in range(60) for c in [ss.baselines.random(graph(), TOPOLOGY, seed=seed)] for name in _uses(c)
    }
    assert {"combinable", "uneven", "shared device", "several dims", "one device"} <= seen


def _uses(strategy: ss.Strategy) -> set[str]:
    found = set()
    for op in strategy.graph.ops:
        configuration = strategy[op.name]
        dims = [op.dim(name) for name in configuration.degrees]
        found |= {"combinable"} if any(d and d.combinable for d in dims) else set()
        found |= {"uneven"} if any(d and d.size % n for d, n in zip(dims, configuration.degrees.values())) else set()
        found |= {"shared device"} if len(set(configuration.devices)) < configuration.num_parts else set()
        found |= {"several dims"} if len(dims) > 1 else {"one device"} if not dims else set()
    return found


def test_a_configuration_is_a_value() -> None:
    one = ss.Configuration({"channel": 1, "sample": 2}, (0, 1))
    assert one == ss.Configuration({"sample": 2}, (0, 1))
    assert len({one, ss.Configuration({"sample": 2}, (0, 1))}) == 1
    with pytest.raises(TypeError):
        one.degrees["sample"] = 3  # type: ignore[index]


BAD: dict[str, tuple[dict[str, int], tuple[Any, ...], str]] = {
    "unknown dim": ({"depth": 2}, (0, 1), "op 'stem' splits 'depth', which it does not have; its dims are: sample"),
    "too many": ({"sample": 6}, (0, 1, 2, 3, 0, 1), "splits 'sample' of size 5 in 6; use at most 5"),
    "zero": ({"sample": 0}, (0,), "the degree of 'sample' must be a whole number"),
    "fraction": ({"sample": 1.5}, (0,), "must be a whole number"),  # type: ignore[dict-item]
    "few devices": ({"sample": 2}, (0,), "make 2 parts, but 1 devices are named"),
    "no such device": ({"sample": 2}, (0, 4), "names device 4; the topology has 0 to 3"),
    "device of text": ({}, ("gpu",), "names device 'gpu'"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_illegal_configuration_gets_a_sentence(name: str) -> None:
    degrees, devices, message = BAD[name]
    strategy = ss.baselines.data_parallel(graph(), TOPOLOGY)
    with pytest.raises(ss.SoapstoneError, match=message):
        strategy.replace({"stem": ss.Configuration(degrees, devices)})


def data() -> ss.Strategy:
    return ss.baselines.data_parallel(graph(), TOPOLOGY)


NONSENSE: list[Callable[[], object]] = [
    lambda: ss.Configuration(None),  # type: ignore[arg-type]
    lambda: ss.Configuration({}, 3),  # type: ignore[arg-type]
    lambda: ss.Configuration({}, b"x"),  # type: ignore[arg-type]
    lambda: ss.Strategy(graph(), TOPOLOGY, {"stem": 3}),  # type: ignore[dict-item]
    lambda: ss.Strategy(graph(), TOPOLOGY, None),  # type: ignore[arg-type]
    lambda: ss.baselines.data_parallel(graph(), TOPOLOGY).replace(None),  # type: ignore[arg-type]
    lambda: ss.baselines.random(graph(), TOPOLOGY, max_parts=-1),
    lambda: ss.Training(3),  # type: ignore[arg-type]
    lambda: ss.Training(bucket_bytes=-1),
    lambda: ss.Training(bucket_bytes=1.5),  # type: ignore[arg-type]
    lambda: ss.Training(optimizer=0),  # type: ignore[arg-type]
    lambda: ss.simulate(graph(), TOPOLOGY, data(), training=3),  # type: ignore[arg-type]
    lambda: ss.simulate(graph(), TOPOLOGY, data(), training=ss.Training(optimizer="magic")),
    lambda: ss.Topology.parse(None),  # type: ignore[arg-type]
    lambda: ss.run_threads(0, print),
]


@pytest.mark.parametrize("number", range(len(NONSENSE)))
def test_nonsense_gets_a_sentence(number: int) -> None:
    with pytest.raises(ss.SoapstoneError):
        NONSENSE[number]()


def test_a_strategy_names_what_is_missing_or_unknown() -> None:
    strategy = dict(ss.baselines.data_parallel(graph(), TOPOLOGY))
    with pytest.raises(ss.SoapstoneError, match="no op 'stump'"):
        ss.Strategy(graph(), TOPOLOGY, {**strategy, "stump": strategy["stem"]})
    del strategy["pool"]
    with pytest.raises(ss.SoapstoneError, match="no configuration for pool"):
        ss.Strategy(graph(), TOPOLOGY, strategy)


def test_a_strategy_for_another_graph_or_topology_is_refused() -> None:
    other = ss.capture(CASES["mlp"].workload())
    strategy = ss.baselines.data_parallel(other, TOPOLOGY)
    with pytest.raises(ss.SoapstoneError, match="the strategy is for graph"):
        ss.simulate(graph(), TOPOLOGY, strategy)
    with pytest.raises(ss.SoapstoneError, match="for 4 devices, the topology has 2"):
        ss.simulate(other, ss.Topology.parse("cpu:1x2"), strategy)


def test_a_strategy_comes_back_from_its_file(tmp_path: Path) -> None:
    strategy = ss.baselines.random(graph(), TOPOLOGY, seed=3)
    strategy.save(tmp_path / "s.json")
    assert dict(ss.Strategy.load(tmp_path / "s.json", graph(), TOPOLOGY)) == dict(strategy)


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "x"}, "is not a strategy file"),
    "format": ({"format": 7}, "strategy format 7"),
    "key": ({"stages": 2}, "unknown key 'stages'"),
    "ops": ({"ops": []}, "'ops' must be an object"),
    "row": ({"ops": {"stem": 3}}, "op 'stem' must have 'devices'"),
    "made for": ({"made_for": 3}, "'made_for' must be an object"),
    "range": ({"ops": {"stem": {"devices": "3-"}}}, "op 'stem': devices must be a list of numbers, or a range"),
    "no step": ({"ops": {"stem": {"devices": "0-3:0"}}}, "devices must be a list"),
    "parts": ({"ops": {"stem": {"degrees": {"sample": 3}, "devices": "0-3"}}}, "make 3 parts, but 4 devices are named"),
    "illegal": ({"ops": {"stem": {"degrees": {"depth": 2}, "devices": "0-1"}}}, "splits 'depth', which it does not"),
    "device": ({"ops": {"stem": {"devices": "9"}}}, "names device 9; the topology has 0 to 3"),
    "default": ({"default": {"devices": "0-1"}}, "the default: degrees {} make 1 parts"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_gets_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    ss.baselines.data_parallel(graph(), TOPOLOGY).save(path)
    changes, message = DAMAGE[name]
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ss.SoapstoneError, match=message):
        ss.Strategy.load(path, graph(), TOPOLOGY)


def written(tmp_path: Path, **content: Any) -> Path:
    path = tmp_path / "hand.json"
    path.write_text(json.dumps({"kind": "soapstone strategy", "format": 2, **content}))
    return path


def test_a_hand_written_file_has_patterns_and_a_default(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        default={"degrees": {"sample": 4}, "devices": "0-3"},
        ops={
            "s*": {"degrees": {"channel": 2, "sample": 2}, "devices": [0, 2, 1, 3]},
            "st*": {"devices": "2"},
            "branch": {"degrees": {"height": 2}, "devices": "1-3:2"},
        },
    )
    strategy = ss.Strategy.load(path, graph(), TOPOLOGY)
    assert strategy["stem"] == ss.Configuration({}, (2,))  # the more specific pattern
    assert strategy["side"] == ss.Configuration({"sample": 2, "channel": 2}, (0, 2, 1, 3))
    assert strategy["branch"] == ss.Configuration({"height": 2}, (1, 3))
    assert strategy["pool"] == ss.Configuration({"sample": 4}, (0, 1, 2, 3))
    assert strategy["loss_mean"].num_parts in (1, 4)
    assert strategy.notes == ()


def test_without_a_default_every_op_must_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, ops={"s*": {"devices": "0"}})
    with pytest.raises(ss.SoapstoneError, match=r"does not apply: it has no configuration for .*, and no default"):
        ss.Strategy.load(path, graph(), TOPOLOGY)


def test_a_pattern_is_fitted_to_each_op() -> None:
    stem = graph().op("stem")
    wide = ss.Configuration({"depth": 2, "sample": 8}, tuple(range(16)))
    assert wide.fitted(stem) == ss.Configuration({"sample": 5}, (0, 2, 4, 6, 8))
    assert ss.Configuration({"sample": 2}, (3, 1)).fitted(stem) == ss.Configuration({"sample": 2}, (3, 1))
    assert ss.Configuration({"depth": 2}, (3, 1)).fitted(stem) == ss.Configuration({}, (3,))


def test_a_file_says_what_has_changed_and_whether_it_still_applies(tmp_path: Path) -> None:
    ss.baselines.data_parallel(graph(), TOPOLOGY).save(tmp_path / "s.json")
    small = ss.capture(CASES["mlp"].workload())
    found = ss.Strategy.load(tmp_path / "s.json", small, ss.Topology.parse("p100:1x4"))
    first, second = found.notes[:2]
    assert f"made for graph {graph().fingerprint} of {len(graph().ops)} ops, this is graph {small.fingerprint}" in first
    assert "made for 4 cpu, this topology has 4 p100; it still applies" in second
    assert found["first"] == ss.Configuration({"sample": 4}, (0, 1, 2, 3))
    with pytest.raises(ss.SoapstoneError, match=r"does not apply: .* names device 2.*for 4 cpu, this .* has 2 cpu"):
        ss.Strategy.load(tmp_path / "s.json", graph(), ss.Topology.parse("cpu:1x2"))


@pytest.mark.parametrize("seed", range(8))
def test_any_strategy_comes_back_from_its_file(seed: int, tmp_path: Path) -> None:
    strategy = ss.baselines.random(graph(), TOPOLOGY, seed=seed)
    strategy.save(tmp_path / "s.json")
    loaded = ss.Strategy.load(tmp_path / "s.json", graph(), TOPOLOGY)
    assert (dict(loaded), loaded.notes) == (dict(strategy), ())
    assert len((tmp_path / "s.json").read_text().splitlines()) < len(graph().ops) + 12  # a line an op


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    strategy = ss.baselines.data_parallel(graph(), TOPOLOGY)
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(tmp_path / "s.json")
    strategy.save(link)
    assert link.is_symlink()
    assert dict(ss.Strategy.load(tmp_path / "s.json", graph(), TOPOLOGY)) == dict(strategy)
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as reader:
        strategy.save(pipe)
        assert reader.read(1) == b"{"
    assert pipe.is_fifo()


def test_a_default_is_fitted_to_a_microbatch(tmp_path: Path) -> None:
    """Of two samples, which cannot be split over four devices."""
    mlp, topology = captured("mlp"), ss.Topology.parse("cpu:1x4")
    count = mlp.num_samples // 2
    path = written(tmp_path, microbatches=count, default={"degrees": {"sample": 4}, "devices": "0-3"})
    strategy = ss.Strategy.load(path, mlp, topology)
    assert strategy["first"] == ss.Configuration({"sample": 2}, (0, 1))
    strategy.save(tmp_path / "again.json")
    assert ss.Strategy.load(tmp_path / "again.json", mlp, topology) == strategy
