"""`soapstone explain` and `diff`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import soapstone as ss
from soapstone.cli import main

from .test_cli import run

LENET = ("lenet", "-t", "p100:1x4", "--batch", "16")


@pytest.fixture
def found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "found.json"
    run(capsys, "search", *LENET, "--proposals", "200", "-o", str(path))
    return path
