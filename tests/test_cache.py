"""The cache: what is used stays, what is large is small on disk, and there is a limit."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone import cache
from tests.support.models import captured

MIB = 2**20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOAPSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(number: int, age: int = 0) -> None:
    """A small graph, last used so many seconds ago."""
    before = set(cache.entries())
    cache.keep({"number": number}, captured("mlp"), {})
    for path in set(cache.entries()) - before:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))


def kept() -> list[int]:
    return [number for number in range(10) if cache.find({"number": number}) is not None]


def test_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        keep(number, age=100 - number)
    (size, *_) = (found.st_size for found in cache.entries().values())
    assert cache.find({"number": 0}) is not None  # now it was used last
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", str(3 * size + 50))
    keep(4)
    assert kept() == [0, 3, 4]


def test_a_limit_below_one_graph_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", "10")
    keep(0)
    assert kept() == []


LIMITS = {"": 2 * 2**30, "1000": 1000, "500MB": 500 * 10**6, "2GiB": 2 * 2**30, "1.5 GiB": 3 * 2**29, "64k": 64_000}


@pytest.mark.parametrize("text", LIMITS)
def test_limits_are_sizes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", text)
    assert cache.limit() == LIMITS[text]


def test_a_limit_that_is_none_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", "plenty")
    with pytest.raises(ss.SoapstoneError, match="'plenty' is not a size; write it as 500MB or 2GiB"):
        cache.find({"number": 0})


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dense(x) * torch.tril(torch.ones(512, 512))
        return found


def test_a_large_mask_is_small_on_disk() -> None:
    graph = ss.capture(ss.Workload(Masked(), (torch.randn(4, 512, 512),), loss=torch.sum))
    cache.keep({"number": 0}, graph, {})
    assert len(json.dumps(graph.to_data())) > MIB
    ((_, found),) = cache.entries().items()
    assert found.st_size < MIB / 16
    again = cache.find({"number": 0})
    assert again is not None
    assert again.fingerprint == graph.fingerprint


def test_several_may_write_and_prune_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(0)
    (size,) = (found.st_size for found in cache.entries().values())
    monkeypatch.setenv("SOAPSTONE_CACHE_LIMIT", str(2 * size + 50))
    captured("mlp")
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for number in range(start, start + 20):
                cache.keep({"number": number}, captured("mlp"), {})
                cache.find({"number": number})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(cache.entries()) <= 2


def test_what_was_left_half_written_goes(own_cache: Path) -> None:
    keep(0)
    old, young = (own_cache / "graphs" / f".soapstone-{name}" for name in ("old", "young"))
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    keep(1)
    assert (old.exists(), young.exists()) == (False, True)
