"""The commands, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from soapstone import zoo
from soapstone.cli import main

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
    "no number": (["show", "lenet", "--batch", "many"], "Invalid value for '--batch'"),
    "no samples": (["show", "lenet", "--batch", "0"], "batch=0 is not a number of samples"),
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
    "failing": "model.py:11 raises ValueError: no data here",
    "wrong": "model.py:wrong must return a soapstone.Workload, not int",
    "absent": "model.py has no function 'absent'",
}


@pytest.mark.parametrize("function", IN_FILES)
def test_a_faulty_file_gets_one_line(
    function: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "show", f"{file}:{function}") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"soapstone: {IN_FILES[function]}"


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
    done = subprocess.run([sys.executable, "-c", SECOND, model], capture_output=True, text=True, timeout=100)
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
    (entry,) = (own_cache / "graphs").glob("*.json")
    whole = entry.read_text()
    for damage in (whole[: len(whole) // 2], "[]", '{"sources": {}, "graph": {}}', '{"sources": 3}', ""):
        entry.write_text(damage)
        assert run(monkeypatch, "show", "lenet") == 0
        assert entry.read_text() == whole
    monkeypatch.setenv("SOAPSTONE_CACHE", str(entry))  # a file where the folder should be
    assert run(monkeypatch, "show", "lenet") == 0


def test_the_cache_keeps_the_newest(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.cache.KEPT", 2)
    for batch in ("2", "3", "4"):
        assert run(monkeypatch, "show", "lenet", "--batch", batch) == 0
    assert len(list((own_cache / "graphs").glob("*.json"))) == 2
