"""`soapstone cache`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Soapstone


def test_the_cache_shows_and_clears_itself(
    soapstone: Soapstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    assert "0 captured graphs, 0 B of at most 2.15 GB." in soapstone("cache").out
    assert soapstone("show", "lenet").err
    (tmp_path / "cache" / "times.sqlite").write_text("times")
    found = json.loads(soapstone("cache", "--json").out)
    assert (found["path"], found["graphs"], found["times_bytes"]) == (str(tmp_path / "cache"), 1, 5)
    assert found["bytes"] > 0
    assert "1 captured graph is removed." in soapstone("cache", "--clear").out
    assert json.loads(soapstone("cache", "--json").out)["graphs"] == 0
    assert (tmp_path / "cache" / "times.sqlite").exists()
    assert soapstone("show", "lenet").err  # captured anew


def test_a_wrong_limit_gets_a_sentence(soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", "plenty")
    for words in (("cache",), ("show", "lenet")):
        assert "'plenty' is not a size; write it as 500MB or 2GiB" in soapstone(*words).complaint
