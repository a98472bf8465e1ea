"""`search` with measured costs names the simplest strategy within the known error, and starts from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soapstone.cli import arguments

from .conftest import Soapstone

LENET = ("lenet", "--batch", "8", "-t", "cpu:1x2", "--proposals", "200")


def test_measured_costs_bring_the_simplest(soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "neighbours_of", lambda topology: 0)  # what times come to does not matter here
    found = json.loads(soapstone("search", *LENET, "--costs", "measured", "--no-save", "--json").out)
    simplest = found["simplest"]
    assert simplest["makespan"] <= found["makespan"] * (1 + found["known_error"])
    assert simplest["name"].startswith("data parallelism")
    assert simplest["strategy"]["kind"] == "soapstone strategy"
    plain = json.loads(soapstone("search", *LENET, "--no-save", "--json").out)
    assert "simplest" not in plain


def test_a_search_starts_from_a_file(soapstone: Soapstone, tmp_path: Path) -> None:
    path = str(tmp_path / "s.json")
    first = json.loads(soapstone("search", *LENET, "-o", path, "--json").out)
    again = json.loads(soapstone("search", *LENET, "--start", path, "--no-save", "--json").out)
    assert again["makespan"] <= first["makespan"]
    assert "there is no strategy" in soapstone("search", *LENET, "--start", "nowhere.json").complaint
    refused = soapstone("search", *LENET, "--start", path, "--method", "optcnn").complaint
    assert "--start is for searches that walk" in refused
