"""Damages strategy, topology and graph files.

People edit the first two, and neither changes what is computed. So damage that leaves a valid file makes *another* one,
which must be read correctly and be usable. Nobody edits the times that `tune` recorded: those that are read must be
those that were written, for the same strategy. Nobody edits graphs either, whose numbers determine what is computed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

import soapstone as ss
from soapstone.strategy import Measured
from soapstone.topology import Bus, Device, Link, Sum
from soapstone.topology.document import parse_yaml
from tests.support.models import captured

from .mutations import BYTES, Tree, joined_with
from .tally import ANOTHER, HARMLESS, SILENT, Tally
from .trying import try_all

MACHINES = ss.Topology.parse("cpu:1x4")
CALIBRATED = ss.Topology(  # with all that `calibrate` measures
    (
        Device("a", "cpu", 0, 2**30, 1000, 2000, 3000, 4000, 1e9),
        Device("b", "cpu", 0, 2**30),
        Device("c", "cpu", 1, 2**31),
    ),
    (
        Link("a", "b", 1e9, 5, 6, True, 0.5, 2e9, 3e9, ((1, 200), (3000, 4000)), ("memory",)),
        Link("a", "switch", 2e9, 700),
        Link("switch", "c", 1.5e9, 800, duplex=False),
    ),
    (Sum(2, 1, ((0, 5000), (10_000, 9000)), 0.5),),
    (Bus("memory", 1e9),),
)


def strategies(count: int, seed: int) -> Tally:
    """Files that `search` writes, and a person changes."""
    tally, graph = Tally(), captured("mlp")
    for number, name in enumerate(("random", "fsdp", "microbatches")):
        strategy = _strategy(name, graph)
        _try_strategies(tally, strategy, count // 3, seed + number)
    return tally


def records(count: int, seed: int) -> Tally:
    """The same with what `tune` found."""
    tally, strategy = Tally(), _strategy("random", captured("mlp"))
    strategy.predicted = 0.031
    strategy.measured = Measured(0.052, 4, "cpu", "2026-01-31", 15, 0.0625)
    _try_strategies(tally, strategy, count, seed)
    return tally


def topologies(count: int, seed: int) -> Tally:
    """Files that `calibrate` writes, and a person changes."""
    tally, other = Tally(), _saved(MACHINES)
    text = _saved(CALIBRATED)
    tree = Tree(yaml.safe_load(text), is_yaml=True)
    damages = {**BYTES, **tree.damages, "joined with another": joined_with({"other": other})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.yaml"
        try_all(tally, damages, text, lambda raw: _judge_topology(path, raw), count, seed)
    return tally


def graphs(count: int, seed: int) -> Tally:
    """Files that `OperatorGraph.save` writes."""
    tally, good, other = Tally(), captured("mlp"), captured("cnn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        other.save(path)
        others = {"other": path.read_bytes()}
        good.save(path)
        raw = path.read_bytes()
        damages = {**BYTES, **Tree(json.loads(raw)).damages, "joined with another": joined_with(others)}

        def judge(changed: bytes) -> str:
            path.write_bytes(changed)
            found = ss.OperatorGraph.load(path).fingerprint
            return HARMLESS if found == good.fingerprint else ANOTHER if changed == others["other"] else SILENT

        try_all(tally, damages, raw, judge, count, seed)
    return tally


def _strategy(name: str, graph: ss.OperatorGraph) -> ss.Strategy:
    if name == "random":
        return ss.baselines.random(graph, MACHINES, seed=1)
    if name == "fsdp":
        return ss.baselines.fsdp(graph, MACHINES)
    return ss.Strategy(graph, MACHINES, {op.name: _on(number % 4) for number, op in enumerate(graph.ops)}, 2)


def _on(device: int) -> ss.Configuration:
    return ss.Configuration(devices=(device,), recompute=device == 1, in_flight=1)


def _try_strategies(tally: Tally, strategy: ss.Strategy, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.json"
        other = _strategy("fsdp", strategy.graph)
        other.predicted, other.measured = 0.02, strategy.measured
        other.save(path)
        others = {"other": path.read_bytes()}
        strategy.save(path, {"model": "mlp"})
        raw = path.read_bytes()
        damages = {**BYTES, **Tree(json.loads(raw)).damages, "joined with another": joined_with(others)}

        def judge(changed: bytes) -> str:
            path.write_bytes(changed)
            found = ss.Strategy.load(path, strategy.graph, MACHINES)
            if changed == others["other"]:
                return ANOTHER if found == other and _record(found) == _record(other) else SILENT
            return _judge_strategy(path, found, strategy)

        try_all(tally, damages, raw, judge, count, seed)


def _record(strategy: ss.Strategy) -> tuple[float | None, Measured | None]:
    return strategy.predicted, strategy.measured


def _judge_strategy(path: Path, found: ss.Strategy, wanted: ss.Strategy) -> str:
    is_same, record = found == wanted, _record(found)
    if record != (None, None) and (not is_same or record != _record(wanted)):
        return SILENT  # times that were never measured, or not of this strategy
    if record != _record(wanted) and not found.notes:
        return SILENT
    if is_same:
        return HARMLESS if record == _record(wanted) and not found.notes else ANOTHER
    data = json.loads(path.read_text())
    if any(name in data["ops"] and not _is_as_said(found[name], data["ops"][name]) for name in found):
        return SILENT
    if data.get("microbatches", 1) != found.microbatches or not _comes_back(found, path):
        return SILENT
    ss.simulate(found.graph, found.topology, found)
    return ANOTHER


def _is_as_said(found: ss.Configuration, row: dict[str, Any]) -> bool:
    """What a row under an op's own name says, read by itself; an op that trains nothing shards and recomputes
    nothing."""
    degrees = {name: degree for name, degree in row.get("degrees", {}).items() if degree != 1}
    kept = (found.shard in ("none", row.get("shard", "none")), not found.recompute or row.get("recompute", False))
    first, _, rest = str(row["devices"]).partition("-")
    last, _, step = rest.partition(":")
    given = row["devices"]
    devices = list(range(int(first), int(last or first) + 1, int(step or 1))) if isinstance(given, str) else given
    return (
        dict(found.degrees) == degrees
        and list(found.devices) == devices
        and all(kept)
        and found.in_flight == row.get("in_flight")
    )


def _comes_back(found: ss.Strategy, path: Path) -> bool:
    found.save(path)
    return ss.Strategy.load(path, found.graph, found.topology) == found


def _judge_topology(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    found = ss.Topology.load(path)
    if found == CALIBRATED:
        return HARMLESS
    if list(_differences(found, parse_yaml(raw.decode()))):
        return SILENT
    found.save(path)
    if ss.Topology.load(path) != found:
        return SILENT
    graph = captured("mlp")
    ss.simulate(graph, found, ss.baselines.data_parallel(graph, found))
    return ANOTHER


def _differences(found: ss.Topology, data: Any) -> Iterator[str]:
    """Where a topology is not what its file says: nothing may be left out, added or changed."""
    for section in ("devices", "links", "sums", "buses"):
        rows, own = data.get(section, []), getattr(found, section)
        if len(rows) != len(own):
            yield section
        for row, made in zip(rows, own):
            defaults = {field.name: field.default for field in fields(made)}
            for name, default in defaults.items():
                wanted = row.get(name, default)
                value = getattr(made, name)
                if isinstance(wanted, list):
                    wanted = tuple(tuple(each) if isinstance(each, list) else each for each in wanted)
                if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
                    yield f"{section}: {name}"
            yield from (f"{section}: {name}" for name in row if name not in defaults)
    yield from (key for key in data if key not in ("format", "devices", "links", "sums", "buses"))


def _saved(topology: ss.Topology) -> bytes:
    handle, name = tempfile.mkstemp(suffix=".yaml")
    os.close(handle)
    path = Path(name)
    topology.save(path)
    raw = path.read_bytes()
    path.unlink()
    return raw
