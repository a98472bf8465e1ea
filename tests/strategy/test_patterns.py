"""Strategies in few rows: the same strategy comes back, and equal layers are one row."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from soapstone.strategy.file import data_of
from tests.support.models import captured
from tests.support.seeds import cases

TOPOLOGY = ss.Topology.parse("cpu:1x4")
SMALL: dict[str, dict[str, Any]] = {
    "lenet": {},
    "alexnet": {"image": 64, "width": 4, "hidden": 8},
    "inception-v3": {"image": 75, "divide": 8},
    "resnet-101": {"image": 32, "blocks": (1, 2, 3, 1), "width": 4},
    "rnntc": {"vocab": 9, "length": 4, "hidden": 4, "layers": 2},
    "rnnlm": {"vocab": 9, "length": 4, "hidden": 4, "layers": 2},
    "nmt": {"vocab": 9, "length": 4, "hidden": 4, "layers": 2},
    "gpt2": {"vocab": 9, "length": 4, "width": 8, "heads": 2, "layers": 3},
    "llama": {"vocab": 9, "length": 4, "width": 8, "heads": 2, "key_heads": 1, "inner": 8, "layers": 12},
    "mixtral": {"vocab": 9, "length": 4, "width": 8, "heads": 2, "key_heads": 1, "inner": 8, "experts": 4, "layers": 3},
    "dit": {"image": 8, "width": 8, "heads": 2, "layers": 3},
    "vit": {"image": 32, "width": 8, "heads": 2, "layers": 3},
}


@cache
def zoo_graph(name: str, batch: int = 4) -> ss.OperatorGraph:
    return ss.capture(ss.zoo.load(name, batch=batch, **SMALL[name]))


def test_every_model_of_the_zoo_is_tried() -> None:
    assert {ss.zoo.entry(name).model for name in SMALL} == {ss.zoo.entry(name).model for name in ss.zoo.names()}


def came_back(strategy: ss.Strategy, path: Path) -> bool:
    strategy.save(path)
    found = ss.Strategy.load(path, strategy.graph, strategy.topology)
    return (dict(found), found.notes) == (dict(strategy), ())


@pytest.mark.parametrize("name", cases(SMALL, long=["inception-v3"]))
def test_what_is_folded_comes_back_exactly(name: str, tmp_path: Path) -> None:
    graph = zoo_graph(name)
    made = [baseline(graph, TOPOLOGY) for baseline in (ss.baselines.data_parallel, ss.baselines.model_parallel)]
    made += [ss.baselines.random(graph, TOPOLOGY, seed=seed) for seed in range(2)]
    assert all(came_back(strategy, tmp_path / "s.json") for strategy in made)


KNOWN = [ss.Configuration({"sample": 2}, (0, 1)), ss.Configuration({"sample": 2}, (2, 1)), ss.Configuration({}, (3,))]


@pytest.mark.parametrize("name", cases(["rnnlm", "gpt2", "inception-v3"], long=["inception-v3"]))
def test_a_few_configurations_over_many_ops_come_back(name: str, tmp_path: Path) -> None:
    graph = zoo_graph(name)
    for seed in range(20):
        rng = random.Random(seed)
        chosen = {op.name: rng.choices(KNOWN, (seed, 2, 1))[0].fitted(op) for op in graph.ops}
        assert came_back(ss.Strategy(graph, TOPOLOGY, chosen), tmp_path / "s.json")


def test_equal_layers_are_one_row(tmp_path: Path) -> None:
    graph = zoo_graph("llama")
    strategy = ss.baselines.data_parallel(graph, TOPOLOGY)
    split = {op.name: ss.Configuration({}, (1,)) for op in graph.ops if op.kind == "linear"}
    strategy = strategy.replace(split)
    assert came_back(strategy, tmp_path / "s.json")
    assert len(graph.ops) > 100
    assert len((tmp_path / "s.json").read_text().splitlines()) < 40


def test_an_exception_has_a_row_of_its_own() -> None:
    graph = zoo_graph("gpt2")
    alike = [op.name for op in graph.ops if op.name.endswith("attention.query")]
    strategy = ss.baselines.data_parallel(graph, TOPOLOGY)
    strategy = strategy.replace({name: ss.Configuration({}, (2,)) for name in alike})
    assert data_of(graph, TOPOLOGY, strategy)["ops"] == {"blocks.*.attention.query": {"degrees": {}, "devices": "2"}}
    other = strategy.replace({alike[1]: ss.Configuration({}, (3,))})
    assert data_of(graph, TOPOLOGY, other)["ops"][alike[1]] == {"degrees": {}, "devices": "3"}
    assert other.to_data()["ops"]["blocks.*.attention.query"]["devices"] == "2"


def test_a_strategy_prints_itself() -> None:
    graph = zoo_graph("gpt2")
    changes = {op.name: ss.Configuration({}, (2,)) for op in graph.ops if op.name.endswith("attention.query")}
    head, first, last = str(ss.baselines.data_parallel(graph, TOPOLOGY).replace(changes)).splitlines()
    assert head.split() == ["op", "ops", "split", "devices"]
    assert first.split() == ["blocks.*.attention.query", "3", "whole", "2"]
    assert last.split() == ["all", "others", str(len(graph.ops) - 3), "sample=4", "0-3"]
    many = str(ss.baselines.random(zoo_graph("inception-v3"), TOPOLOGY)).splitlines()
    assert len(many) == 40
    assert many[-1].startswith("... and ")


def test_a_strategy_knows_its_devices() -> None:
    graph = captured("cnn")
    one = ss.Strategy(graph, TOPOLOGY, {op.name: ss.Configuration({}, (2,)) for op in graph.ops})
    assert one.devices == [2]
    assert one.replace({"stem": ss.Configuration({"sample": 2}, (0, 2))}).devices == [0, 2]


MISSPELT: dict[str, tuple[dict[str, Any], str]] = {
    "a default": (
        {"default": {"degrees": {"sampel": 2}, "devices": "0-1"}},
        r"the default splits 'sampel', which no op that it applies to has; did you mean sample\?",
    ),
    "a pattern": (
        {"default": {"devices": "0"}, "ops": {"s*": {"degrees": {"hieght": 2}, "devices": "0-1"}}},
        r"pattern 's\*' splits 'hieght', which no op that it applies to has; did you mean height\?",
    ),
    "another's": (
        {"default": {"devices": "0"}, "ops": {"s*": {"degrees": {"zzz": 2}, "devices": "0-1"}}},
        "no op that it applies to has; their dims are: sample",
    ),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_dim_is_refused(name: str, tmp_path: Path) -> None:
    content, sentence = MISSPELT[name]
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"kind": "soapstone strategy", "format": 2, **content}))
    with pytest.raises(ss.SoapstoneError, match=sentence):
        ss.Strategy.load(path, captured("cnn"), TOPOLOGY)


def written(tmp_path: Path, **content: Any) -> Path:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"kind": "soapstone strategy", "format": 2, **content}))
    return path


UNKNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "a misspelt op": (("stemm",), r"it names 'stemm', which this graph does not have; did you mean stem\? --fit"),
    "a pattern": (("stem", "layers.*"), r"it names 'layers\.\*', which this graph does not have; --fit, or fit=True"),
    "many": (tuple(f"layer{i}" for i in range(9)), r"'layer5' and 3 more, which this graph does not have"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_rows_for_ops_that_are_not_there_are_refused_unless_asked_for(name: str, tmp_path: Path) -> None:
    rows, sentence = UNKNOWN[name]
    path = written(tmp_path, default={"devices": "0"}, ops={row: {"devices": "1"} for row in rows})
    graph = captured("cnn")
    with pytest.raises(ss.SoapstoneError, match=f"does not apply: .*{sentence}"):
        ss.Strategy.load(path, graph, TOPOLOGY)
    found = ss.Strategy.load(path, graph, TOPOLOGY, fit=True)
    assert found["stem"].devices == ((1,) if "stem" in rows else (0,))
    by_default = len(graph.ops) - ("stem" in rows)
    assert f"which this graph does not have; {'did you mean stem? ' * (name == 'a misspelt op')}" in found.notes[0]
    assert f"{by_default} of {len(graph.ops)} ops take its default; it still applies" in found.notes[0]


def test_fitting_does_not_make_up_for_a_default(tmp_path: Path) -> None:
    path = written(tmp_path, ops={"stem": {"devices": "1"}, "stemm": {"devices": "1"}})
    with pytest.raises(ss.SoapstoneError, match=r"it has no configuration for .*, and no default"):
        ss.Strategy.load(path, captured("cnn"), TOPOLOGY, fit=True)


def test_a_pattern_whose_ops_all_have_better_rows_is_noted(tmp_path: Path) -> None:
    rows = {"ste*": {"devices": "1"}, "stem": {"devices": "2"}}
    (note,) = ss.Strategy.load(
        written(tmp_path, default={"devices": "0"}, ops=rows), captured("cnn"), TOPOLOGY
    ).notes  # fmt: skip
    assert "no op takes 'ste*', since other rows are more specific; it still applies" in note


@pytest.mark.parametrize("seed", range(3))
def test_a_file_for_another_batch_needs_no_fitting(seed: int, tmp_path: Path) -> None:
    few, many = zoo_graph("rnnlm"), zoo_graph("rnnlm", 8)
    strategy = ss.baselines.random(few, TOPOLOGY, seed=seed)
    strategy.save(tmp_path / "s.json")
    found = ss.Strategy.load(tmp_path / "s.json", many, TOPOLOGY)
    assert dict(found) == dict(strategy)
    (note,) = found.notes
    assert "it was made for graph" in note
