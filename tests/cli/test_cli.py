"""The commands, as a user types them."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import soapstone as ss
from soapstone import zoo
from soapstone.cli import main
from soapstone.topology import preset_names
from tests.support.seeds import cases

MODEL = """
import torch
from torch import nn
import soapstone as ss
from sizes import WIDTH

def work():
    return ss.Workload(nn.Linear(WIDTH, 3), (torch.randn(4, WIDTH),), loss=torch.sum)

def failing():
    raise ValueError("no data here")

def wrong():
    return 3
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    (tmp_path / "sizes.py").write_text("WIDTH = 5\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["soapstone", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_models_lists_the_zoo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == zoo.names()
    assert run(monkeypatch, "models", "--json") == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == zoo.names()


def test_show_has_a_row_for_equal_ops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--batch", "2", *(f"--size={size}" for size in ("vocab=9", "length=3", "hidden=4", "layers=2"))]
    assert run(monkeypatch, "show", "rnnlm", *small) == 0
    out = capsys.readouterr().out
    (cells,) = [line.split() for line in out.splitlines() if "stack.cells" in line]
    assert cells[:3] == ["stack.cells.*", "6", "lstm_cell"]
    assert cells[-1].startswith("stack.cells.*")  # its layer
    assert "saved for backward" in out
    assert run(monkeypatch, "show", "rnnlm", *small, "--all") == 0
    assert sum("stack.cells" in line for line in capsys.readouterr().out.splitlines()) == 6


def test_show_speaks_to_machines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "show", "lenet", "--batch", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 61_706
    first = found["ops"][0]
    assert (first["kind"], first["flops"]) == ("conv2d", 2 * 4 * 6 * 28 * 28 * 25 + 4 * 6 * 28 * 28)
    assert first["dims"][0] == {
        "name": "sample", "size": 4, "kind": "sample", "splittable": True, "combinable": False
    }  # fmt: skip
    assert first["parameter_bytes"] == 4 * (6 * 25 + 6)


WRONG = {
    "an unknown model": (["show", "lenett"], "there is no model 'lenett'; did you mean lenet?"),
    "no model": (["show"], "Missing argument 'MODEL'"),
    "an unknown command": (["shew"], "No such command 'shew'"),
    "no number": (
        ["show", "lenet", "--batch", "many"],
        "--batch takes a whole number of at least 1; write",
    ),
    "no samples": (
        ["show", "lenet", "--batch", "0"],
        "--batch takes a whole number of at least 1; write it as --batch 8",
    ),
    "a size without a number": (["show", "lenet", "--size", "classes"], "--size 'classes' is not NAME=N"),
    "an unknown size": (["show", "lenet", "--size", "depth=3"], "lenet has no size 'depth'"),
    "an unknown mode": (["show", "lenet", "--batch-norm", "none"], "batch_norm='none' is not known"),
    "no such file": (["show", "nowhere.py:work"], "there is no file nowhere.py"),
    "no function": (["show", "nowhere.py"], "'nowhere.py' is not path/to/file.py:function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_gets_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = WRONG[name]
    assert run(monkeypatch, *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    complaint = [line for line in captured.err.splitlines() if not line.startswith("Capturing")]
    assert len(complaint) == 1
    assert complaint[0].startswith(f"soapstone: {sentence}")


IN_FILES = {
    "failing": "model.py:11 raises ValueError: no data here (--verbose prints all that led to it)",
    "wrong": "model.py:wrong must return a soapstone.Workload, not int",
    "absent": "model.py has no function 'absent'; it has work, failing, wrong",
    "worc": "model.py has no function 'worc'; did you mean work?",
}


@pytest.mark.parametrize("function", IN_FILES)
def test_a_faulty_file_gets_one_line(
    function: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "show", f"{file}:{function}") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"soapstone: {IN_FILES[function]}"
    assert run(monkeypatch, "show", f"{file}:{function}", "--verbose") == 2
    said = capsys.readouterr().err
    assert ("Traceback" in said) == (function == "failing")
    assert "--verbose" not in said


SECOND = """
import sys
from soapstone.cli import main
sys.argv = ["soapstone", "show", sys.argv[1]]
try:
    main()
except SystemExit as stopped:
    print("torch" in sys.modules, stopped.code or 0, file=sys.stderr)
"""


def second(model: str) -> tuple[str, str]:
    """A command in a process of its own: what it prints, and whether it loaded torch."""
    done = subprocess.run([sys.executable, "-c", SECOND, model], capture_output=True, text=True)
    return done.stdout, done.stderr.splitlines()[-1]


def test_the_second_command_does_not_load_torch(file: Path) -> None:
    model = f"{file}:work"
    first = second(model)
    assert first[1] == "True 0"
    assert "{in}=5" in first[0]
    assert second(model) == (first[0], "False 0")
    (file.parent / "sizes.py").write_text("WIDTH = 7\n")  # a module that the file imports
    changed = second(model)
    assert changed[1] == "True 0"
    assert "{in}=7" in changed[0]


def test_a_damaged_or_locked_cache_is_no_obstacle(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "show", "lenet") == 0
    (entry,) = (own_cache / "graphs").iterdir()
    whole = entry.read_bytes()
    texts = (b"[]", b'{"sources": {}, "graph": {}}', b'{"sources": 3}', b"", b"no JSON", b"\xff")
    for damage in (whole[: len(whole) // 2], b"[]", b"", *map(gzip.compress, texts)):
        entry.write_bytes(damage)
        assert run(monkeypatch, "show", "lenet") == 0
        assert entry.read_bytes() == whole
    monkeypatch.setenv("SOAPSTONE_CACHE", str(entry))  # a file where the folder should be
    assert run(monkeypatch, "show", "lenet") == 0


def test_topologies_lists_the_presets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "topologies") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in preset_names())
    assert run(monkeypatch, "topologies", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == preset_names()


SMALL = ["rnnlm", "--batch", "4", *(f"--size={size}" for size in ("vocab=9", "length=3", "hidden=4", "layers=2"))]


def test_simulate_predicts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["simulate", *SMALL, "-t", "k80:2x2", "-s", "expert"]
    assert run(monkeypatch, *words, "--trace", str(tmp_path / "t.json")) == 0
    assert "an iteration" in capsys.readouterr().out
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert run(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["makespan"] > found["exposed_communication"] >= 0
    assert len(found["peak_memory"]) == 4
    assert all(peak <= bound for peak, bound in zip(found["peak_memory"], found["memory"]["bound"]))


def test_simulate_takes_a_strategy_and_a_topology_from_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ss.Topology.parse("p100:1x2").save(tmp_path / "t.yaml")
    (tmp_path / "s.json").write_text(
        '{"kind": "soapstone strategy", "format": 2, "made_for": {"graph": "other", "ops": 3, "devices": {"p100": 2}},'
        ' "default": {"degrees": {"sample": 2}, "devices": "0-1"}, "ops": {"stack.*": {"devices": "1"}}}'
    )
    assert run(monkeypatch, "simulate", *SMALL, "-t", str(tmp_path / "t.yaml"), "-s", str(tmp_path / "s.json")) == 0
    captured = capsys.readouterr()
    assert "gpu1" in captured.out
    assert "it was made for graph other of 3 ops, this is graph" in captured.err


def test_compare_puts_the_approaches_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *SMALL, "-t", "p100:1x2", "--proposals", "200"]
    assert run(monkeypatch, *words) == 0
    table, *_ = capsys.readouterr().out.split("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    baselines = ["data", "model", "expert", "zero1", "fsdp", "megatron", "pipeline"]
    assert [row[0] for row in rows] == [*baselines, "optcnn", "paper", "soapstone"]
    assert rows[0][3] == "1.00x"
    assert run(monkeypatch, *words, "--precision", "float64", "--methods", "soapstone, data", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found] == ["soapstone", "data"]
    assert found["soapstone"]["speed_up"] >= 1
    assert found["soapstone"]["search_seconds"] > 0


@pytest.mark.parametrize(
    "method", cases(["soapstone", "paper", "optcnn", "reinforce", "exhaustive"], long=["exhaustive"])
)
def test_search_writes_what_simulate_reads(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = ["lenet", "--batch", "256", "-t", "p100:1x2"]  # so large that hosts, which bounds leave out, matter little
    words = ["--method", method, "--proposals", "300", "-o", str(tmp_path / "s.json")]
    assert run(monkeypatch, "search", *model, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, "simulate", *model, "-s", str(tmp_path / "s.json"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == found["makespan"]
    assert run(monkeypatch, "search", *model, *words) == 0
    table, _, *remarks = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == ["approach", "data", method]
    assert ("Proved to be the best" in str(remarks)) == (method == "exhaustive") or not remarks


def test_ctrl_c_ends_a_search_with_the_best_so_far(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soapstone", "search", "rnnlm", "--size", "length=4", "-t", "p100:4x4"]
    path = tmp_path / "s.json"
    with subprocess.Popen([*command, "--budget", "300", "-o", path], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "proposals" in line)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert "Written to" in process.stderr.read()
    assert json.loads(path.read_text())["kind"] == "soapstone strategy"


def test_names_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "[bold]d[[red].json"
    words = ["search", "lenet", "--batch", "8", "-t", "p100:1x2", "--proposals", "9"]
    assert run(monkeypatch, *words, "-o", str(path)) == 0
    assert str(path) in capsys.readouterr().err
    assert path.exists()


def test_what_does_not_fit_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topology = ss.Topology.parse("p100:1x2")
    small = tuple(replace(device, memory=2**20) for device in topology.devices)
    replace(topology, devices=small).save(tmp_path / "t.yaml")
    words = ["compare", "lenet", "--batch", "64", "-t", str(tmp_path / "t.yaml"), "--proposals", "20"]
    assert run(monkeypatch, *words) == 0
    captured = capsys.readouterr()
    assert "! does not fit" in captured.out
    assert "Without soapstone: no strategy that was found fits" in captured.err
    assert run(monkeypatch, *words, "--methods", "soapstone") == 2


SEARCHING_WRONG = {
    "no seconds": (["--budget", "0"], "--budget takes a number of at least 0.001; write it as --budget 8"),
    "no number of seconds": (["--budget", "ten"], "--budget takes a number of at least 0.001; write"),
    "less than no time": (["--budget", "-5"], "--budget takes a number of at least 0.001; write"),
    "an unknown method": (["--method", "magic"], "there is no method 'magic'; use one of"),
    "a missing folder": (["-o", "/absent/s.json"], "cannot write /absent/s.json: No such file"),
    "a folder": (["-o", "/"], "cannot write /: it is a folder"),
    "no chains": (["--chains", "0"], "--chains takes a whole number from 1 to 256; write it as --chains 8"),
}


@pytest.mark.parametrize("name", SEARCHING_WRONG)
def test_bad_input_for_a_search_gets_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = SEARCHING_WRONG[name]
    assert run(monkeypatch, "search", "lenet", "-t", "p100:1x2", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"soapstone: {sentence}")  # before the model is captured
    assert run(monkeypatch, "compare", "lenet", "-t", "p100:1x2", "--methods", "data,magic") == 2
    assert "there is no approach 'magic'" in capsys.readouterr().err
    assert run(monkeypatch, "compare", "lenet", "-t", "p100:1x2", "--budget=-1") == 2


def test_a_batch_for_each_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "simulate", "lenet", "-t", "p100:2x2", "--batch-per-device", "3", "--json") == 0
    weak = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, "simulate", "lenet", "-t", "p100:2x2", "--batch", "12", "--json") == 0
    strong = json.loads(capsys.readouterr().out)
    for found in (weak, strong):
        found["strategy"]["made_for"].pop("arguments")  # which say how the batch was named
    assert strong == weak


PREDICTING_WRONG = {
    "no topology": ([], "Missing option '-t'"),
    "an unknown preset": (["-t", "p101:1x2"], "topology 'p101:1x2': no preset 'p101'"),
    "no such file": (["-t", "absent.yaml"], "there is no topology file absent.yaml; `soapstone calibrate` writes one"),
    "an unknown strategy": (["-t", "p100:1x2", "-s", "magic"], "there is no strategy 'magic'; use data, model, expert"),
    "an unknown optimizer": (["-t", "p100:1x2", "--optimizer", "magic"], "no costs for optimizer 'magic'"),
    "an unknown precision": (["-t", "p100:1x2", "--precision", "int3"], "precision 'int3' is not known"),
    "two batches": (
        ["-t", "p100:1x2", "--batch", "4", "--batch-per-device", "2"],
        "--batch and --batch-per-device say",
    ),
    "a folder for a trace": (["-t", "p100:1x2", "--trace", "/absent/t.json"], "cannot write /absent/t.json"),
    "too few bytes": (["-t", "p100:1x2", "--bucket-bytes", "-3"], "--bucket-bytes takes a whole number of at least 0"),
}


@pytest.mark.parametrize("name", PREDICTING_WRONG)
def test_bad_input_for_a_prediction_gets_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = PREDICTING_WRONG[name]
    assert run(monkeypatch, "simulate", "lenet", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    complaint = [line for line in captured.err.splitlines() if not line.startswith("Capturing")]
    assert len(complaint) == 1
    assert complaint[0].startswith(f"soapstone: {sentence}")


def test_simulate_says_what_fills_the_memory_and_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["simulate", *SMALL, "-t", "k80:1x2", "--must-fit"]
    assert run(monkeypatch, *words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "is the fullest, with" in said
    assert "optimizer state" in said
    assert "does not fit" not in said
    assert run(monkeypatch, *words, "--precision", "bfloat16") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "are bfloat16, too; with --precision mixed or autocast they stay float32" in said
    topology = tmp_path / "tiny.yaml"
    devices = [replace(device, memory=10**6) for device in ss.Topology.parse("k80:1x2").devices]
    replace(ss.Topology.parse("k80:1x2"), devices=tuple(devices)).save(topology)
    words[words.index("k80:1x2")] = str(topology)
    assert run(monkeypatch, *words) == 1
    assert "does not fit" in " ".join(capsys.readouterr().out.split())[-200:]
    assert run(monkeypatch, *words[:-1]) == 0
