"""Strategies, topologies and graphs, damaged and hostile: they are read, or refused in one sentence."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import soapstone as ss
from soapstone.files import checksum_of, read_json
from soapstone.topology import Bus, Device, Link, Sum
from tests.cli.conftest import Soapstone
from tests.support.models import captured
from tests.support.mutations import (
    INSTEAD,
    ONLY_YAML,
    VALUES,
    WHOLE,
    assert_refused_or_read,
    damaged,
    guarded,
    places_in,
    with_text,
)
from tests.support.seeds import seeds

TOPOLOGY = ss.Topology.parse("cpu:1x4")
CALIBRATED = ss.Topology(  # with all that `soapstone calibrate` measures
    (Device("a", "cpu", 0, 2**30, 1000, 2000, 3000, 4000, 1e9), Device("b", "cpu", 0, 2**30)),
    (Link("a", "b", 1e9, 5, 6, True, 0.5, 2e9, 3e9, ((1, 200), (3000, 4000)), ("memory",)),),
    (Sum(2, 1, ((0, 5000), (10_000, 9000)), 0.5),),
    (Bus("memory", 1e9),),
)
MANY = 60  # mutations to a seed


@dataclass(frozen=True)
class Format:
    """A kind of file: one that is good, and what reads it."""

    name: str
    text: str
    data: Any
    read: Callable[[Path], object]
    values: dict[str, str]


def read_strategy(path: Path) -> object:
    return ss.Strategy.load(path, captured("mlp"), TOPOLOGY)


def read_topology(path: Path) -> object:
    """And use it: a number that passes must not be too much for the core."""
    topology = ss.Topology.load(path)
    return ss.simulate(captured("mlp"), topology, ss.baselines.data_parallel(captured("mlp"), topology))


def read_graph(path: Path) -> object:
    graph = ss.OperatorGraph.from_data(resealed(read_json(path)), str(path))
    return graph.fingerprint, str(graph), ss.simulate(graph, TOPOLOGY, ss.baselines.data_parallel(graph, TOPOLOGY))


def resealed(data: Any) -> Any:
    """Under a right checksum, so that what is behind it is tried, too."""
    if not isinstance(data, dict):
        return data
    rest = {key: value for key, value in data.items() if key != "checksum"}
    return {**rest, "checksum": checksum_of(rest)}


@cache
def strategy_data() -> dict[str, Any]:
    found = ss.baselines.random(captured("mlp"), TOPOLOGY, seed=1)
    measured = {"seconds": 0.5, "ranks": 4, "device": "cpu", "date": "2026-01-31", "rounds": 3, "ddp": 0.25}
    data = found.to_data({"model": "lenet", "topology": "p100:1x4"})
    extra = {"predicted": 1.5, "measured": measured, "microbatches": 1, "default": {"degrees": {}, "devices": "0-0"}}
    row = {"degrees": {"sample": 2}, "devices": "0-2:2", "shard": "all", "recompute": True, "in_flight": 1}
    return {**data, **extra, "ops": {**data["ops"], "*s*": row}}


@cache
def formats() -> dict[str, Format]:
    calibrated = yaml.safe_load(_saved(CALIBRATED))
    graph = json.loads(json.dumps(captured("mlp").to_data()))
    in_yaml = VALUES | {f"{name} in YAML": text for name, text in ONLY_YAML.items()}
    rows = [
        Format("strategy", json.dumps(strategy_data()), strategy_data(), read_strategy, VALUES),
        Format("topology", _saved(CALIBRATED), calibrated, read_topology, in_yaml),
        Format("graph", json.dumps(graph), graph, read_graph, VALUES),
    ]
    return {row.name: row for row in rows}


def _saved(topology: ss.Topology) -> str:
    read, write = os.pipe()
    with open(read) as reader:
        topology.save(f"/dev/fd/{write}")
        os.close(write)
        return reader.read()


NAMES = ("strategy", "topology", "graph")


def each(path: Path, contents: Iterable[tuple[object, bytes]], read: Callable[[Path], object]) -> None:
    for what, content in contents:
        path.write_bytes(content)
        assert_refused_or_read(read, path, what)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_file_is_read(name: str, tmp_path: Path) -> None:
    form = formats()[name]
    for content in (form.text, json.dumps(form.data)):
        (tmp_path / "file").write_text(content)
        form.read(tmp_path / "file")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", seeds(2, 50))
def test_damage_is_refused_in_a_sentence(name: str, seed: int, tmp_path: Path) -> None:
    form, rng = formats()[name], random.Random(seed)
    each(tmp_path / "file", ((n, damaged(form.text.encode(), rng)) for n in range(MANY)), form.read)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", seeds(3, 100))
def test_any_value_at_any_place_is_refused_in_a_sentence(name: str, seed: int, tmp_path: Path) -> None:
    form, rng = formats()[name], random.Random(seed)
    places = list(places_in(form.data))
    chosen = [(rng.choice(places), rng.choice(list(form.values))) for _ in range(MANY)]
    texts = (((place, value), with_text(form.data, place, form.values[value])) for place, value in chosen)
    each(tmp_path / "file", ((what, text.encode()) for what, text in texts), form.read)


@pytest.mark.parametrize("name", NAMES)
def test_another_content_is_refused_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    each(tmp_path / "file", WHOLE.items(), formats()[name].read)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("instead", INSTEAD)
def test_what_is_no_file_is_refused_in_a_sentence(name: str, instead: str, tmp_path: Path) -> None:
    INSTEAD[instead](tmp_path / "file")
    with pytest.raises(ss.SoapstoneError), guarded():
        formats()[name].read(tmp_path / "file")
    assert_refused_or_read(formats()[name].read, tmp_path / "file", instead)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_version_says_so(name: str, tmp_path: Path) -> None:
    for version in ("99", '"next"', "null", "9" * 900):
        (tmp_path / "file").write_text(with_text(formats()[name].data, ("format",), version))
        with pytest.raises(ss.SoapstoneError, match=rf"has {name} format .*, this version reads \d"):
            formats()[name].read(tmp_path / "file")


# Commands

LENET = ("lenet", "--batch", "8", "-t", "p100:1x2")
STRATEGY = {"kind": "soapstone strategy", "format": 2, "default": {"devices": "0"}}
BAD_STRATEGIES = {
    "cut off": json.dumps(STRATEGY)[:40],
    "a huge number": with_text(STRATEGY, ("default", "devices"), "[" + "9" * 5000 + "]"),
    "too many devices": with_text(STRATEGY, ("default", "devices"), '"0-999999"'),
    "deep": with_text(STRATEGY, ("default",), VALUES["deeper"]),
    "another version": json.dumps({**STRATEGY, "format": 3}),
    "nothing": "",
}
BAD_TOPOLOGIES = {
    "a call": "!!python/object/apply:os.system ['touch called']",
    "a bomb": WHOLE["a bomb"].decode(),
    "another version": "format: 2\ndevices: []\nlinks: []",
    "cut off": "devices: [{name: a",
}
WITH_STRATEGY = (
    ("simulate", *LENET, "-s", "bad", "--trace", "out.png"),
    ("search", *LENET, "--start", "bad", "-o", "out.png", "--proposals", "5"),
    ("plan", *LENET, "-s", "bad"),
    ("explain", "bad", "--model", *LENET),
    ("diff", "data", "bad", "--model", *LENET),
    ("report", "bad", "--model", *LENET, "-o", "out.png"),
    ("export", "bad", "--model", *LENET, "-o", "out.png"),
    ("tune", *LENET, "--start", "bad", "-o", "out.png"),
    ("plot", "search", "bad", "-o", "out.png"),
)
WITH_TOPOLOGY = (
    ("simulate", "lenet", "-t", "bad.yaml", "--report", "out.png"),
    ("search", "lenet", "-t", "bad.yaml", "-o", "out.png"),
    ("tune", "lenet", "-t", "bad.yaml", "-o", "out.png"),
    ("profile", "lenet", "-t", "bad.yaml"),
)


def assert_one_line(soapstone: Soapstone, words: tuple[str, ...]) -> None:
    """And what would have been written is as it was."""
    out = Path("out.png")
    out.write_text("precious")
    with guarded():
        done = soapstone(*words)
    assert (done.status, done.out) == (2, ""), (words, done.err)
    assert [line[:11] for line in done.err.splitlines()] == ["soapstone: "], (words, done.err)
    assert out.read_text() == "precious", words


def try_contents(soapstone: Soapstone, words: tuple[str, ...], bad: Path, texts: Iterable[str]) -> None:
    for text in texts:
        bad.write_text(text)
        assert_one_line(soapstone, words)
        assert bad.read_text() == text
    bad.unlink()


def try_instead(soapstone: Soapstone, words: tuple[str, ...], bad: Path) -> None:
    for instead in INSTEAD:
        INSTEAD[instead](bad)
        assert_one_line(soapstone, words)
        bad.rmdir() if instead == "a folder" else bad.unlink()


@pytest.mark.parametrize("words", WITH_STRATEGY, ids=lambda words: " ".join(words[:2]))
def test_a_bad_strategy_ends_any_command_in_one_line(
    words: tuple[str, ...], soapstone: Soapstone, tmp_path: Path
) -> None:
    assert soapstone("show", *LENET[:3]).status == 0  # so that it need not be captured
    try_contents(soapstone, words, tmp_path / "bad", BAD_STRATEGIES.values())
    try_instead(soapstone, words, tmp_path / "bad")


def test_a_tuning_refuses_to_replace_what_is_no_strategy(soapstone: Soapstone, tmp_path: Path) -> None:
    words, texts = ("tune", *LENET, "-o", "bad"), [text for text in BAD_STRATEGIES.values() if text]
    try_contents(soapstone, words, tmp_path / "bad", texts)


WRITING = (
    ("search", *LENET, "-o", "bad"),
    ("simulate", *LENET, "--report", "bad"),
    ("report", "data", "--model", *LENET, "-o", "bad"),
)


@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
@pytest.mark.parametrize("instead", ["a folder", "a link to itself"])
def test_what_cannot_be_written_is_said_before_the_work(
    words: tuple[str, ...], instead: str, soapstone: Soapstone, tmp_path: Path
) -> None:
    INSTEAD[instead](tmp_path / "bad")
    assert "cannot write bad: it " in soapstone(*words).complaint


@pytest.mark.parametrize("words", WITH_TOPOLOGY, ids=lambda words: words[0])
def test_a_bad_topology_ends_any_command_in_one_line(
    words: tuple[str, ...], soapstone: Soapstone, tmp_path: Path
) -> None:
    try_contents(soapstone, words, tmp_path / "bad.yaml", BAD_TOPOLOGIES.values())
    try_instead(soapstone, words, tmp_path / "bad.yaml")
    assert not (tmp_path / "called").exists()


def made_for(tmp_path: Path, **arguments: Any) -> str:
    (tmp_path / "s.json").write_text(json.dumps({**STRATEGY, "made_for": {"arguments": arguments}}))
    return "s.json"


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a model elsewhere": (
        {"model": "../evil.py:make", "topology": "p100:1x2"},
        "names the model '../evil.py:make', which is not in its folder; where you trust it, name it yourself, with",
    ),
    "a topology elsewhere": ({"model": "lenet", "topology": "/t.yaml"}, "which is not in its folder"),
    "a link": ({"model": "link.py:make", "topology": "p100:1x2"}, "which is not in its folder"),
    "a nul": ({"model": "\0.py:make", "topology": "p100:1x2"}, "which is not in its folder"),
    "a run's own": (
        {"model": "lenet", "topology": "p100:1x2", "fit": True},
        "was made for a 'fit', which this version",
    ),
    "a number": ({"model": 3, "topology": "p100:1x2"}, "was made for model 3, which cannot be; write it anew"),
    "sizes": ({"model": "lenet", "topology": "p100:1x2", "sizes": [3]}, "was made for sizes [3], which cannot be"),
    "a batch": ({"model": "lenet", "topology": "p100:1x2", "batch": 2**63}, "is not a number of samples"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_a_file_was_made_for_is_checked(name: str, soapstone: Soapstone, tmp_path: Path) -> None:
    arguments, sentence = ARGUMENTS[name]
    evil = tmp_path.parent / "evil.py"
    evil.write_text("raise SystemExit('it ran')")
    (tmp_path / "link.py").symlink_to(evil)
    assert sentence in soapstone("explain", made_for(tmp_path, **arguments)).complaint


# Rows for ops that are not there


def test_a_strategy_of_another_model_is_refused_unless_it_is_to_fit(soapstone: Soapstone, tmp_path: Path) -> None:
    other = ("--batch", "16", "-t", "p100:1x2")
    assert soapstone("search", "lenet", *other, "--proposals", "50", "-o", "lenet.json").status == 0
    content = json.loads((tmp_path / "lenet.json").read_text())
    content = {**content, "default": {"devices": "0"}, "ops": {"0.0": {"devices": "1"}, **content["ops"]}}
    (tmp_path / "lenet.json").write_text(json.dumps(content))
    words = ("simulate", "alexnet", *other, "-s", "lenet.json")
    assert soapstone("show", "alexnet", "--batch", "16").status == 0
    refused = soapstone(*words)
    assert len(refused.err.splitlines()) == 1
    assert "lenet.json does not apply: it names '0.0'" in refused.complaint
    assert "which this graph does not have; --fit, or fit=True in Python, applies all else" in refused.complaint
    fitted = soapstone(*words, "--fit")
    assert fitted.status == 0
    assert "which this graph does not have" in fitted.err
    assert "ops take its default; it still applies" in fitted.err


def test_every_command_that_takes_a_strategy_can_fit_it(soapstone: Soapstone) -> None:
    takes = {words[0] for words in WITH_STRATEGY} - {"plot"} | {"train"}
    for name in (*takes, "compare", "show"):
        assert ("--fit" in soapstone(name, "--help").out) == (name in takes), name
