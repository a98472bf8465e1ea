"""Graphs in files: the same graph comes back, without torch; a damaged file says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from soapstone.files import checksum_of
from tests.support.models import CASES


@pytest.mark.parametrize("name", CASES)
def test_a_graph_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    graph = ss.capture(CASES[name].workload())
    graph.save(tmp_path / "graph.json")
    again = ss.OperatorGraph.load(tmp_path / "graph.json")
    assert again == graph
    assert again.fingerprint == graph.fingerprint


def test_simulating_a_saved_graph_needs_no_torch(tmp_path: Path) -> None:
    ss.capture(CASES["cnn"].workload()).save(tmp_path / "graph.json")
    code = (
        "import sys, soapstone as ss\n"
        f"graph = ss.OperatorGraph.load({str(tmp_path / 'graph.json')!r})\n"
        "topology = ss.Topology.parse('p100:2x4')\n"
        "print(ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)).makespan_ns)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def _damaged(change: Any) -> Any:
    def apply(data: dict[str, Any]) -> str:
        del data["checksum"]
        change(data)
        return json.dumps({**data, "checksum": checksum_of(data)})

    return apply


DAMAGE: dict[str, tuple[Any, str]] = {
    "empty": (lambda data: "", "not valid JSON"),
    "truncated": (lambda data: json.dumps(data)[:200], "not valid JSON"),
    "nested": (lambda data: "[" * 100_000, "not valid JSON"),
    "list": (lambda data: "[]", "is not a saved graph"),
    "other kind": (_damaged(lambda d: d.update(kind="strategy")), "is not a saved graph"),
    "format": (_damaged(lambda d: d.update(format=99)), "graph format 99"),
    "missing key": (_damaged(lambda d: d.pop("ops")), "lacks the key 'ops'"),
    "unknown key": (_damaged(lambda d: d.update(more=1)), "unknown key 'more'"),
    "wrong type": (_damaged(lambda d: d["ops"][0].update(head="x")), r"graph.ops\[0\].head must be of type int"),
    "bad index": (_damaged(lambda d: d["ops"][0]["inputs"][0].update(tensor=999)), "is damaged"),
    "bad value": (_damaged(lambda d: d["ops"][0]["steps"][0].update(inputs=[77, 1, 2])), "is damaged"),
    "no loss": (_damaged(lambda d: d.update(loss=999)), "there is no tensor 999"),
    "no op for it": (_damaged(lambda d: d["ops"].pop(0)), "before it is made"),
    "no outputs": (_damaged(lambda d: d["ops"][0].update(outputs=[])), "before it is made"),
    "dim twice": (_damaged(lambda d: d["ops"][0]["dims"].append(d["ops"][0]["dims"][0])), "has a dim twice"),
    "name twice": (_damaged(lambda d: d["ops"][1].update(name=d["ops"][0]["name"])), "two ops have one name"),
    "no size": (_damaged(lambda d: d["tensors"][0]["shape"].__setitem__(0, 0)), "size is out of range"),
    "huge size": (_damaged(lambda d: d["tensors"][0]["shape"].__setitem__(0, 2**62)), "is damaged"),
    "huge index": (_damaged(lambda d: d["ops"][0]["inputs"][0].update(value=2**40)), "out of range"),
    "dtype": (_damaged(lambda d: d["tensors"][0].update(dtype="zebra")), "unknown dtype 'zebra'"),
    "bad dim": (_damaged(lambda d: d["ops"][0]["dims"][0].update(step_dim=50)), "is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_gets_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    ss.capture(CASES["mlp"].workload()).save(path)
    damage, message = DAMAGE[name]
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(ss.SoapstoneError, match=message):
        ss.OperatorGraph.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ss.SoapstoneError, match="cannot read"):
        ss.OperatorGraph.load(tmp_path / "nothing.json")
    graph = ss.capture(CASES["mlp"].workload())
    with pytest.raises(ss.SoapstoneError, match="cannot write"):
        graph.save(tmp_path / "no" / "folder.json")
    with pytest.raises(ss.SoapstoneError, match="cannot write"):
        graph.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for nonsense in (None, 3, "a\0b", "/dev/zero"):
        with pytest.raises(ss.SoapstoneError, match="not a p"):
            ss.OperatorGraph.load(nonsense)  # type: ignore[arg-type]
