"""`soapstone explain` and `diff`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import pytest

from .test_cli import own_cache, run

__all__ = ["own_cache"]  # a fixture
Monkey: TypeAlias = pytest.MonkeyPatch
Captured: TypeAlias = pytest.CaptureFixture[str]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: Monkey, capsys: Captured) -> str:
    path = str(tmp_path / "found.json")
    sizes = ("--size", "length=4", "--size", "hidden=256", "--size", "vocab=2000")
    assert run(monkeypatch, "search", "rnnlm", "-t", "p100:1x4", *sizes, "--proposals", "300", "-o", path) == 0
    capsys.readouterr()
    return path


def test_a_strategy_file_explains_itself(found: str, monkeypatch: Monkey, capsys: Captured) -> None:
    assert run(monkeypatch, "explain", found) == 0
    said = capsys.readouterr().out
    assert "stack.cells.0" in said
    assert "under data parallelism it takes" in said
    assert "sooner" in said


def test_explanations_for_machines(found: str, monkeypatch: Monkey, capsys: Captured) -> None:
    assert run(monkeypatch, "explain", found, "--json") == 0
    read = json.loads(capsys.readouterr().out)
    assert read["makespan"] < read["other_makespan"]
    assert all(choice["ops"] and "seconds" in choice for choice in read["choices"])
    assert run(monkeypatch, "diff", found, "expert", "--json") == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == read["makespan"]


def test_a_difference_has_a_row(found: str, tmp_path: Path, monkeypatch: Monkey, capsys: Captured) -> None:
    assert run(monkeypatch, "diff", found, "data") == 0
    assert "gradient sums" in capsys.readouterr().out
    assert run(monkeypatch, "diff", found, found) == 0
    assert "are the same strategy" in capsys.readouterr().out


def test_a_baseline_needs_a_model(monkeypatch: Monkey, capsys: Captured) -> None:
    assert run(monkeypatch, "explain", "expert") == 2
    assert "add --model MODEL and -t TOPOLOGY" in capsys.readouterr().err
    assert run(monkeypatch, "explain", "expert", "--model", "lenet", "-t", "p100:1x2") == 0


def test_options_say_otherwise(found: str, monkeypatch: Monkey, capsys: Captured) -> None:
    assert run(monkeypatch, "explain", found, "--optimizer", "sgd", "--json") == 0
    other = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, "explain", found, "--json") == 0
    assert other["makespan"] < json.loads(capsys.readouterr().out)["makespan"]


@pytest.mark.parametrize(
    "arguments", [3, {"model": None, "topology": {}}, {"colour": "blue", "model": "x", "topology": "y"}]
)
def test_arguments_that_nobody_wrote_get_a_sentence(
    found: str, arguments: object, monkeypatch: Monkey, capsys: Captured
) -> None:
    data = json.loads(Path(found).read_text())
    data["made_for"]["arguments"] = arguments
    Path(found).write_text(json.dumps(data))
    assert run(monkeypatch, "explain", found) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
