"""Checkpoints, damaged and hostile: they are read, or refused in one sentence."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.checkpoints import latest, whole_state
from soapstone.runtime.checkpoints.index import sealed
from tests.support.models import ALL, captured
from tests.support.mutations import INSTEAD, VALUES, WHOLE, assert_refused_or_read, damaged, places_in, with_text
from tests.support.seeds import seeds

INDEX, TENSORS = "checkpoint.json", "rank-00000.safetensors"
MANY = 60  # mutations to a seed
TRIED = [name for name in VALUES if name != "a long text"]  # a sentence repeats a tensor's name


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two ranks."""
    folder, topology = tmp_path_factory.mktemp("good"), ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.random(captured("mlp"), topology, seed=1)
    works = [ALL["mlp"].workload() for _ in topology.devices]

    def act(rank: int, transport: ThreadTransport) -> None:
        parallel = ss.parallelize(works[rank], captured("mlp"), topology, strategy, transport=transport)
        optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.01)
        parallel.step(*works[rank].batch)
        optimizer.step()
        parallel.save(folder, optimizer, step=1)

    ss.run_threads(2, act, timeout=60)
    found = latest(folder)
    assert found is not None
    assert whole_state(found)
    return found


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """One like it, that may be damaged."""
    return Path(shutil.copytree(good, tmp_path / good.name))


def read(file: Path) -> object:
    """All tensors of the checkpoint that a file is of."""
    return whole_state(file.parent)


@pytest.mark.parametrize("name", [INDEX, TENSORS])
@pytest.mark.parametrize("seed", seeds(1, 30))
def test_damage_is_refused_in_a_sentence(name: str, seed: int, folder: Path) -> None:
    rng, raw = random.Random(seed), (folder / name).read_bytes()
    for number in range(MANY):
        head = raw[: len(raw) // 4] if number % 2 else raw  # in it is where everything else is
        (folder / name).write_bytes(damaged(head, rng) + raw[len(head) :])
        assert_refused_or_read(read, folder / name, number)


@pytest.mark.parametrize("name", [INDEX, TENSORS])
def test_another_content_is_refused_in_a_sentence(name: str, folder: Path) -> None:
    for what, content in WHOLE.items():
        (folder / name).write_bytes(content)
        with pytest.raises(ss.SoapstoneError):
            read(folder / name)
        assert_refused_or_read(read, folder / name, what)


@pytest.mark.parametrize("seed", seeds(2, 50))
def test_any_value_at_any_place_is_refused_in_a_sentence(seed: int, folder: Path) -> None:
    rng, data = random.Random(seed), json.loads((folder / INDEX).read_text())
    places = list(places_in(data))
    for _ in range(MANY):
        place, value = rng.choice(places), rng.choice(TRIED)
        (folder / INDEX).write_bytes(sealed(with_text(data, place, VALUES[value]).encode()))
        assert_refused_or_read(read, folder / INDEX, (place, value))


@pytest.mark.parametrize("name", [INDEX, TENSORS])
@pytest.mark.parametrize("instead", [name for name in INSTEAD if name not in ("a pipe", "a terabyte")])
def test_what_is_no_file_is_refused_in_a_sentence(name: str, instead: str, folder: Path) -> None:
    (folder / name).unlink()
    INSTEAD[instead](folder / name)
    with pytest.raises(ss.SoapstoneError):
        read(folder / name)


RANKS: list[Any] = [-1, "../../elsewhere", 10**30, 1.5, None, 2]


@pytest.mark.parametrize("rank", RANKS)
def test_no_box_is_looked_for_outside_of_the_folder(rank: Any, folder: Path) -> None:
    data = json.loads((folder / INDEX).read_text())
    elsewhere = folder.parent / "elsewhere"
    shutil.copy(folder / TENSORS, elsewhere)
    for stored in data["tensors"].values():
        for chunk in stored["chunks"]:
            chunk[2] = rank
    (folder / INDEX).write_bytes(sealed(json.dumps(data).encode()))
    with pytest.raises(ss.SoapstoneError):
        read(folder / INDEX)


def test_a_checkpoint_of_another_version_says_so(folder: Path) -> None:
    data = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_bytes(sealed(json.dumps({**data, "format": 99}).encode()))
    with pytest.raises(ss.SoapstoneError, match=r"has format 99, by soapstone .*which reads format"):
        read(folder / INDEX)
