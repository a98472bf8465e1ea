"""What a user's model is made from beyond its sources: a cached graph counts only while that is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from soapstone.loading import Request, load_graph

FILE = """
import json
import os
from pathlib import Path

import torch
from torch import nn

import soapstone as ss

os.environ["SET_BY_ITSELF"] = "1"


class Scaled(nn.Linear):
    def forward(self, x):
        own = float(os.environ.get("IN_FORWARD", 1)) * float(Path(__file__).with_name("table").read_text())
        return super().forward(x) * own * float(os.environ["SET_BY_ITSELF"])


def make():
    width = json.loads(Path(__file__).with_name("sizes.json").read_text())
    return ss.Workload(Scaled(width, int(os.getenv("IN_MAKE", 3))), (torch.zeros(4, width),), loss=torch.sum)
"""


def test_variables_and_files_that_a_model_reads_are_part_of_its_cached_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SET_BY_ITSELF", raising=False)
    for name, text in {"model.py": FILE, "sizes.json": "3", "table": "2"}.items():
        (tmp_path / name).write_text(text)

    def is_captured() -> bool:
        told: list[bool] = []
        load_graph(Request(f"{tmp_path / 'model.py'}:make"), announce=lambda: told.append(True))
        monkeypatch.delenv("SET_BY_ITSELF", raising=False)
        return bool(told)

    assert is_captured()
    assert not is_captured()
    for change in (
        lambda: monkeypatch.setenv("IN_MAKE", "5"),
        lambda: monkeypatch.setenv("IN_FORWARD", "2"),
        lambda: (tmp_path / "sizes.json").write_text("4"),
        lambda: (tmp_path / "table").write_text("5"),
    ):
        change()
        assert is_captured()
        assert not is_captured()
    monkeypatch.setenv("READ_BY_NOBODY", "2")
    assert not is_captured()
