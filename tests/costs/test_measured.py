"""Measured costs: every op can be measured, an answer is remembered, and bad caches do no harm. No test says how long
anything takes."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import sleep
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.baselines import BASELINES
from soapstone.cli import arguments, main, profile
from soapstone.costs import Question
from soapstone.costs.measured import measured_costs
from soapstone.costs.measured.neighbours import neighbours
from soapstone.costs.measured.rounds import Pace
from soapstone.costs.measured.store import Store
from soapstone.costs.measured.trial import shared_inputs
from soapstone.graph import OperatorGraph
from soapstone.parts import Part, freed_memory_kept
from tests.support.models import CASES, MORE
from tests.support.seeds import cases


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quick(**more: Any) -> ss.MeasuredCosts:
    return ss.MeasuredCosts("cpu", rounds=1, batch_ms=0.001, **more)


class Tiny(nn.Module):
    """A look-up, an LSTM cell, a convolution, a batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(11, 12), nn.LSTMCell(12, 12)
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state, _ = self.cell(self.embed(tokens))
        y: torch.Tensor = self.head(torch.relu(self.norm(self.conv(state.view(-1, 3, 4)))).flatten(1))
        return y


@cache
def tiny() -> OperatorGraph:
    inputs, targets = torch.randint(0, 11, (6,)), torch.randint(0, 5, (6,))
    return ss.capture(Tiny(), (inputs,), loss=F.cross_entropy, targets=(targets,))


def whole(graph: OperatorGraph, index: int) -> tuple[int, ...]:
    return tuple(dim.size for dim in graph.ops[index].dims)


def questions(graph: OperatorGraph) -> list[Question]:
    """Every op whole, and once more before and behind a combine where it has one."""
    ops = enumerate(graph.ops)
    return [(i, whole(graph, i), combines) for i, op in ops for combines in {False, op.combine is not None}]


def test_times_are_whole_nanoseconds_above_0() -> None:
    costs, graph = quick(), tiny()
    kinds = {op.kind for op in graph.ops}
    assert {"embedding", "lstm_cell", "conv1d", "linear", "cross_entropy"} <= kinds
    for index, extents, combines in questions(graph):
        times = costs.times(graph, index, extents, "cpu", combines)
        assert min(times.forward, times.backward, times.finish_forward, times.finish_backward) >= 1
        assert times.forward > 1
        if combines and graph.ops[index].finishes:
            assert times.finish_forward > 1


def test_measuring_draws_nothing_from_the_users_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    quick().times(tiny(), 0, whole(tiny(), 0), "cpu", False)
    quick().update("cpu", "sgd")
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_of_several_ops_are_asked_about_by_themselves() -> None:
    """Their gradients are added to one another, which takes time."""
    linear = nn.Linear(4, 4)
    inputs = (torch.randn(2, 4),)
    graphs = [ss.capture(nn.Sequential(*layers), inputs, loss=torch.sum) for layers in ([linear, linear], [linear])]
    assert [shared_inputs(graph, 0)[1:] for graph in graphs] == [[True, True], [False, False]]
    costs = quick()
    for graph in graphs:
        costs.times(graph, 0, whole(graph, 0), "cpu", False)
    assert costs.num_measured == 2


def test_neighbours_are_at_work_while_one_measures() -> None:
    alone, beside = quick(), quick(beside=1)
    for costs in (alone, beside):
        costs.times(tiny(), 0, whole(tiny(), 0), "cpu", False)
        assert costs.num_measured == 1  # times of one are not the other's
    with neighbours(1) as (process,):
        assert process.poll() is None
    assert process.poll() is not None


def test_what_has_no_gradient_has_no_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Linear(5, 3))
    graph = ss.capture(model, (torch.randn(2, 4),), loss=torch.sum)
    frozen, trained = (quick().times(graph, i, whole(graph, i), "cpu", False) for i in range(2))
    assert frozen.backward == 1 < frozen.forward
    assert min(trained.forward, trained.backward) >= 1


@pytest.mark.parametrize("name", cases([*CASES, *MORE], long=MORE))
def test_every_op_of_the_test_models_can_be_measured(name: str) -> None:
    graph = ss.capture({**CASES, **MORE}[name].workload())
    topology = ss.Topology.parse("cpu:1x4")
    choices, space = random.Random(name), ss.Space(graph, topology)
    strategy = BASELINES["data"](graph, topology).replace(
        {op.name: choices.choice(space.configurations(op.name)) for op in graph.ops}
    )
    costs = quick()
    simulation = ss.simulate(graph, topology, strategy, training=ss.Training(costs))
    assert simulation.makespan > 0
    assert costs.num_measured > 0


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many questions are measured in each wave from here on."""
    counts: list[int] = []
    real = measured_costs.MeasuredCosts._measure

    def measure(
        self: ss.MeasuredCosts, graph: OperatorGraph, asked: Sequence[Question], tell: Callable[[float], None]
    ) -> list[tuple[float, ...]]:
        counts.append(len(asked))
        return real(self, graph, asked, tell)

    monkeypatch.setattr(measured_costs.MeasuredCosts, "_measure", measure)
    return counts


def test_an_answer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, graph, costs = counted(monkeypatch), tiny(), quick()
    asked = questions(graph)
    costs.prepare(graph, asked, "cpu")
    assert sum(counts) == len(asked) == costs.num_measured
    counts.clear()
    later = quick()
    for index, extents, combines in asked:
        answers = [c.times(graph, index, extents, "cpu", combines) for c in (costs, later)]
        assert answers[0] == answers[1]
    assert counts == []
    assert (later.num_measured, later.num_remembered) == (0, len(asked))
    quick(threads=2).times(graph, *asked[0][:2], "cpu", asked[0][2])
    quick(again=True).times(graph, *asked[0][:2], "cpu", asked[0][2])
    assert counts == [1, 1]


def test_ops_that_differ_in_place_alone_are_measured_once() -> None:
    """Each cell reads another step of the input, and each dropout draws a mask of its own."""
    graph = ss.capture(nn.LSTM(4, 4, 2, dropout=0.5), (torch.randn(8, 3, 4),), loss=lambda y: y[0].sum())
    cells = [i for i, op in enumerate(graph.ops) if op.kind == "lstm_cell"]
    assert len(cells) == 16
    assert len({graph.alike[i] for i in cells}) > 8
    assert len({graph.signature(i) for i in cells}) <= 6


def test_a_search_asks_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, shares = counted(monkeypatch), list[float]()
    costs = quick()
    result = ss.search(
        tiny(),
        ss.Topology.parse("cpu:1x2"),
        training=ss.Training(costs),
        proposals=50,
        progress=lambda now: shares.append(now.share) if now.phase == "asking for costs" else None,
    )
    assert result.makespan > 0
    assert max(counts) == measured_costs.WAVE
    assert shares == sorted(shares)


def test_updates_are_measured_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: quick().update("cpu", name) for name in ("sgd", "momentum", "adam", "adamw")}
    assert all(type(launch) is int and launch >= 1 and per_element >= 0 for launch, per_element in found.values())
    with pytest.raises(ss.SoapstoneError, match="no costs for optimizer 'lion'; there are sgd, momentum"):
        quick().update("cpu", "lion")
    monkeypatch.setattr(measured_costs, "measured_update", None)
    assert quick().update("cpu:avx2", "adam") == found["adam"]


def test_another_kind_of_device_gets_a_sentence() -> None:
    graph, topology = tiny(), ss.Topology.parse("p100:1x2")
    with pytest.raises(ss.SoapstoneError, match=r"measured on cpu .* but the topology has p100 devices; use"):
        ss.simulate(graph, topology, BASELINES["data"](graph, topology), training=ss.Training(quick()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_gets_a_sentence() -> None:
    with pytest.raises(ss.SoapstoneError, match="no CUDA device"):
        ss.MeasuredCosts("cuda")


WRONG: dict[str, dict[str, Any]] = {
    "device='tpu'": {"device": "tpu"},
    "threads=0": {"threads": 0},
    "rounds=0": {"rounds": 0},
    "batch_ms=-1": {"batch_ms": -1},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_bad_arguments_get_a_sentence(sentence: str) -> None:
    with pytest.raises(ss.SoapstoneError, match=sentence):
        ss.MeasuredCosts(**WRONG[sentence])


def test_an_op_that_cannot_run_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no such kernel\nand a long trace")

    monkeypatch.setattr(Part, "run", refuse)
    name = tiny().ops[0].name
    with pytest.raises(ss.SoapstoneError, match=f"op '{name}' .* cannot be measured alone .* no such kernel; use"):
        quick().times(tiny(), 0, whole(tiny(), 0), "cpu", False)


# The store


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"", None])
def test_a_damaged_file_is_dropped(own_cache: Path, damage: bytes | None) -> None:
    store = Store("machine")
    store.write({f"op {i}": (1, 2, 3, 4) for i in range(2000)})
    if damage is None:  # the second half of the pages
        raw = bytearray(store.path.read_bytes())
        raw[len(raw) // 4 :] = b"\xff" * (len(raw) - len(raw) // 4)
        damage = bytes(raw)
    store.path.write_bytes(damage)
    costs, graph = quick(), tiny()
    asked = (0, whole(graph, 0), "cpu", False)
    found = costs.times(graph, *asked)
    assert quick().times(graph, *asked) == found
    assert Store("machine").read() == {}


def test_numbers_that_no_measurement_gives_are_measured_anew(own_cache: Path) -> None:
    graph, asked = tiny(), (0, whole(tiny(), 0), "cpu", False)
    quick().times(graph, *asked)
    with sqlite3.connect(own_cache / "times.sqlite") as connection:
        connection.execute("UPDATE measured SET numbers = '[-5, 0, 1]'")
    connection.close()
    costs = quick()
    assert costs.times(graph, *asked).forward >= 1
    assert costs.num_measured == 1


def test_without_a_writable_folder_times_last_as_long_as_the_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "file" / "cache"))
    costs, graph = quick(), tiny()
    asked = (0, whole(graph, 0), "cpu", False)
    assert costs.times(graph, *asked) == costs.times(graph, *asked)
    assert costs.num_measured == 1


WRITER = """
import sys
from pathlib import Path
from soapstone.costs.measured.store import Store
store = Store("machine", Path(sys.argv[1]))
for i in range(40):
    store.write({f"{sys.argv[2]} {i}": (i, 2, 3, 4), "both": (i, 1, 1, 1)})
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = Store("machine", path).read()
    assert set(found) == {"both", *(f"{name} {i}" for name in ("a", "b") for i in range(40))}


# The commands


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["soapstone", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


LENET = ["lenet", "--batch", "2"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands measure as briefly as can be, and alone."""
    monkeypatch.setattr(measured_costs, "Pace", lambda rounds, batch_ns: Pace(1, 1000))
    for module in (arguments, profile):
        monkeypatch.setattr(module, "neighbours_of", lambda topology: 0)


@pytest.mark.usefixtures("hasty")
def test_profile_measures_and_remembers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "profile", *LENET, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] > 20
    assert found["remembered"] == 0
    assert all(op["forward"] > 0 and op["analytic_backward"] > 0 for op in found["ops"])
    assert run(monkeypatch, "profile", *LENET) == 0
    out = capsys.readouterr().out
    assert ": 0 measured in " in out
    assert f" s, {found['measured']} remembered" in out
    assert "conv2d" in out
    assert run(monkeypatch, "profile", *LENET, "--again") == 0
    assert f"{found['measured']} measured in" in capsys.readouterr().out


@pytest.mark.usefixtures("hasty")
def test_commands_take_measured_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    where = [*LENET, "-t", "cpu:1x2", "--costs", "measured", "--json"]
    assert run(monkeypatch, "search", *where, "--proposals", "20", "--no-save") == 0
    best = json.loads(capsys.readouterr().out)
    counts = counted(monkeypatch)
    assert run(monkeypatch, "simulate", *where) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] >= best["makespan"]
    assert run(monkeypatch, "compare", *where, "--methods", "data,optcnn") == 0
    assert counts == []


def test_wrong_costs_get_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        ("cpu:1x2", "guessed"): "there are no costs 'guessed'; use analytic or measured",
        ("cpu:1x1+p100:1x1", "measured"): "the topology has p100 devices",
    }
    for (topology, costs), sentence in wrong.items():
        assert run(monkeypatch, "simulate", *LENET, "-t", topology, "--costs", costs) == 2
        assert sentence in capsys.readouterr().err


def test_an_interrupted_profile_keeps_what_is_done(own_cache: Path) -> None:
    command = [sys.executable, "-m", "soapstone", "profile", "lenet", "--batch", "64", "-t", "cpu:1x64"]
    environment = {**os.environ, "SOAPSTONE_CACHE": str(own_cache)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        path = own_cache / "times.sqlite"
        while process.poll() is None and _rows(path) < measured_costs.WAVE:
            sleep(0.01)
        process.send_signal(signal.SIGINT)
        complaint = process.stderr.read()
        assert process.wait() == 130
    assert complaint.splitlines()[-1].startswith("Stopped; ")
    assert "Traceback" not in complaint
    assert _rows(path) >= measured_costs.WAVE


def _rows(path: Path) -> int:
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        return int(connection.execute("SELECT count(*) FROM measured").fetchone()[0])
    except sqlite3.Error:
        return 0
    finally:
        connection.close()


def test_freed_memory_is_used_again() -> None:
    """Filling a block that was used before faults on none of its pages."""

    def fill(times: int) -> int:
        before = getrusage(RUSAGE_SELF).ru_minflt
        for _ in range(times):
            torch.zeros(1 << 22).fill_(1)
        return getrusage(RUSAGE_SELF).ru_minflt - before

    with freed_memory_kept():
        fill(8)
        assert fill(8) < 8 * 4096 / 2


def test_what_is_kept_for_good_stays_so_after_a_measurement() -> None:
    program = """
import ctypes
from soapstone.parts import freed_memory_kept, keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
class Info(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]  # field3: blocks of their own
libc.mallinfo2.restype = Info
for keep in (False, True):
    if keep:
        keep_freed_memory()
    with freed_memory_kept():
        pass
    before = libc.mallinfo2().field3
    libc.malloc(ctypes.c_size_t(1 << 27))
    print(libc.mallinfo2().field3 - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]
