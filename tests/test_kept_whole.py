"""Numbers that nobody edits come back as they were written, or not at all."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import soapstone as ss
from soapstone import cache
from soapstone.costs.measured.store import Store
from soapstone.runtime.checkpoints import read_weights, write_weights
from soapstone.strategy import Measured
from tests.support.models import captured

MACHINES = ss.Topology.parse("cpu:1x2")


def test_a_graph_with_another_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    captured("mlp").save(path)
    assert ss.OperatorGraph.load(path).fingerprint == captured("mlp").fingerprint
    data = json.loads(path.read_text())
    data["ops"][0]["flops"] += 1
    path.write_text(json.dumps(data))
    with pytest.raises(ss.SoapstoneError, match=r"graph.json is damaged: its checksum .*; capture the model anew"):
        ss.OperatorGraph.load(path)


def test_the_graph_of_another_request_or_with_other_sources_is_captured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path))
    requests: list[dict[str, Any]] = [{"model": "mlp"}, {"model": "cnn"}]
    for request in requests:
        cache.keep(request, captured(request["model"]), {str(tmp_path / "gone.py"): None})
    paths = list(cache.entries())
    spare = tmp_path / "spare"
    shutil.copy(paths[0], spare)
    shutil.copy(paths[1], paths[0])
    assert [cache.find(request) is None for request in requests].count(True) == 1
    entry = json.loads(gzip.decompress(spare.read_bytes()))
    entry["about"]["sources"] = {}  # then no source could be out of date
    paths[0].write_bytes(gzip.compress(json.dumps(entry).encode()))
    assert [cache.find(request) is None for request in requests].count(True) == 1


@pytest.mark.parametrize(
    "change",
    ["numbers = '[1, 2.5, 4]'", "what = 'another'", "machine = 'machine'"],
    ids=["numbers", "a name", "a machine"],
)
def test_measured_times_that_were_changed_are_measured_anew(change: str, tmp_path: Path) -> None:
    store, path = Store("machine", tmp_path / "times.sqlite"), tmp_path / "times.sqlite"
    Store("another machine", path).write({"changed": (1, 2.5, 3)})
    store.write({"good": (7,)})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE measured SET {change} WHERE what = 'changed'")
    found = Store("another machine", path).read() | store.read()
    assert found == {"good": (7,)}


def test_times_that_are_out_of_order_are_found(tmp_path: Path) -> None:
    """SQLite takes such a file for whole, and does not find what comes after the row."""
    store = Store("machine", tmp_path / "times.sqlite")
    store.write({f"row {number}": (number,) for number in range(9)})
    raw = store.path.read_bytes()
    place = raw.index(b"machinerow 4")
    store.path.write_bytes(raw[:place] + b"maghine" + raw[place + 7 :])
    store.read()
    store.write({"more": (1, 2)})
    assert store.read()["more"] == (1, 2)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_exported_weights_with_another_bit_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{suffix}"
    state = {"a": torch.full((40,), 0.5), "b": torch.tensor(3), "c": torch.zeros(0, 2), "d": torch.tensor([True])}
    write_weights(path, state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in read_weights(path).items())
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"\0\0\0?" * 10) + 8] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ss.SoapstoneError, match=rf"w.{suffix} is damaged: .*; (export|save) it anew"):
        read_weights(path)


def test_exported_weights_under_exchanged_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, {"a": torch.ones(2), "b": torch.zeros(2)})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"a":{', b'"x":{').replace(b'"b":{', b'"a":{').replace(b'"x":{', b'"b":{'))
    assert torch.equal(load_file(path)["a"], torch.zeros(2))
    with pytest.raises(ss.SoapstoneError, match="checksum"):
        read_weights(path)


def test_weights_of_other_programs_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "w.safetensors", {"format": "pt"})
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["a"], torch.ones(2))


@pytest.mark.parametrize("key", ["predicted", "measured", "default", "checksum"])
def test_measured_times_do_not_count_for_a_strategy_that_was_changed(key: str, tmp_path: Path) -> None:
    graph, path = captured("mlp"), tmp_path / "s.json"
    strategy = ss.baselines.data_parallel(graph, MACHINES)
    strategy.predicted, strategy.measured = 0.5, Measured(0.25, 2, "cpu", "2026-01-31")
    strategy.save(path)
    assert ss.Strategy.load(path, graph, MACHINES).measured == strategy.measured
    data = json.loads(path.read_text())
    other = {"measured": data["measured"] | {"seconds": 0.125}, "default": {"degrees": {}, "devices": "1"}}
    path.write_text(json.dumps({**data, key: {"predicted": 0.4, "checksum": "0" * 32, **other}[key]}))
    found = ss.Strategy.load(path, graph, MACHINES)
    assert (found.predicted, found.measured) == (None, None)
    assert "was changed since it was measured" in found.notes[0]
    assert (found == strategy) == (key != "default")
    found.save(path)
    assert not ss.Strategy.load(path, graph, MACHINES).notes
