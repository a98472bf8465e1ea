"""Checkpoints that are not what they were: each damage is named, and nothing is loaded from it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from benchmarks.fuzz.damage import BITS, STRUCTURE
from soapstone.runtime import Parallel
from soapstone.runtime.checkpoints import latest, whole_state
from soapstone.runtime.checkpoints.index import sealed
from tests.runtime.test_checkpoint_cases import plain
from tests.runtime.test_checkpoint_files import ADAMW, assert_equal, on_ranks, step

INDEX = "checkpoint.json"
SGD: Any = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731


def saved_twice(folder: Path, **how: Any) -> list[dict[str, torch.Tensor]]:
    """The states of checkpoints of steps 1 and 2."""

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        found = []
        for number in (1, 2):
            step(parallel, optimizer, work)
            parallel.save(folder, optimizer, step=number)
            found.append(parallel.state_dict())
        return found

    states: list[dict[str, torch.Tensor]] = on_ranks(act, **{"make": plain(), "shard": "all", **how})[0]
    return states


def loaded(folder: Path, *, make: Any = None, optimizer: Any = ADAMW, **options: Any) -> tuple[int, Any]:
    """The step and the state that a training has once it has loaded."""

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        return parallel.load(folder, optimizer, **options), parallel.state_dict()

    found: tuple[int, Any] = on_ranks(act, make=make or plain(), shard="all", optimizer=optimizer)[0]
    return found


def newest(folder: Path) -> Path:
    path = latest(folder)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    saved_twice(folder)
    return folder


@pytest.fixture
def folder(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "saved"))


SAID = {
    "ranks' files swapped": r"it is of rank \d of 2",
    "a file of another checkpoint": r"it is of another checkpoint|its checksum|index",
    "equal blocks swapped": r"its bytes are not those that were written",
    "names swapped in a header": r"tensors|bytes",
    "a type changed in a header": r"it has other tensors than its index says",
    "no file in its place": r"it is not a plain file",
}


@pytest.mark.parametrize("kind", [*STRUCTURE, *BITS])
def test_damage_is_named_and_nothing_is_exported(kind: str, folder: Path) -> None:
    path, rng = newest(folder), random.Random(1)
    (STRUCTURE | BITS)[kind](path, folder / "step-000000001", rng)
    with pytest.raises(ss.SoapstoneError, match=rf"step-000000002.*({SAID.get(kind, '')}).*--last-good"):
        whole_state(folder)


def test_swapped_rank_files_are_refused_on_all_ranks(folder: Path) -> None:
    STRUCTURE["ranks' files swapped"](newest(folder), folder, random.Random(0))
    with pytest.raises(ss.SoapstoneError, match=r"rank 0: cannot read \S*rank-00000\S*: it is of rank 1 of 2"):
        loaded(folder)


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[Change, str]] = {  # indexes whose checksum is right
    "no ranks": (lambda index: index.update(files=[]), "a box is in no file"),
    "an offset": (lambda index: _chunk(index)[0].__setitem__(0, 1), "boxes of one tensor overlap|not inside"),
    "a gap": (lambda index: index["tensors"]["model/0.weight"]["chunks"].pop(), "a file has more tensors than boxes"),
    "quint8": (lambda index: index["tensors"]["model/0.weight"].update(dtype="quint8"), "'quint8' is not a type"),
    "a counter": (lambda index: index["counters"].update(seen=10**40), "out of range"),
    "a type": (lambda index: index["tensors"]["model/0.weight"].update(dtype="int32"), "other tensors than its index"),
    "no state": (lambda index: index["tensors"].pop("optimizer/exp_avg/0.weight"), "boxes|less or more"),
    "no step": (lambda index: index["optimizer"]["numbers"]["0.weight"].pop("step"), "state has less or more"),
}


def _chunk(index: dict[str, Any]) -> Any:
    return index["tensors"]["model/0.weight"]["chunks"][1]


@pytest.mark.parametrize("what", WRONG)
def test_an_index_that_does_not_hold_together_is_refused(what: str, folder: Path) -> None:
    change, said = WRONG[what]
    path = newest(folder) / INDEX
    index = json.loads(path.read_text())
    change(index)
    path.write_bytes(sealed(json.dumps(index).encode()))
    with pytest.raises(ss.SoapstoneError, match=said):
        whole_state(folder)
    with pytest.raises(ss.SoapstoneError, match=said):
        loaded(folder)


def test_the_newest_checkpoint_is_never_skipped_silently(folder: Path) -> None:
    (newest(folder) / INDEX).unlink()
    for read in (whole_state, loaded):
        with pytest.raises(ss.SoapstoneError, match=r"step-000000002/checkpoint\.json: No such file.*--last-good"):
            read(folder)


@pytest.mark.parametrize("kind", ["a bit of the index", "a bit of a file's data", "a file removed", "no index"])
def test_last_good_goes_on_from_the_newest_undamaged_checkpoint(kind: str, folder: Path, tmp_path: Path) -> None:
    before = whole_state(folder / "step-000000001")
    if kind == "no index":
        (newest(folder) / INDEX).unlink()
    else:
        (STRUCTURE | BITS)[kind](newest(folder), folder, random.Random(0))

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        assert parallel.load(folder, optimizer, last_good=True) == 1
        state = parallel.state_dict()
        step(parallel, optimizer, work)
        parallel.save(folder, optimizer, step=2)
        return state

    with pytest.warns(UserWarning, match=r"step-000000002.*; it is .*damaged-step-000000002 now"):
        assert_equal(on_ranks(act, make=plain())[0], before)
    names = {path.name for path in folder.iterdir() if path.name.endswith(("1", "2"))}
    assert names == {"damaged-step-000000002", "step-000000001", "step-000000002"}
    assert loaded(folder)[0] == 2


def test_last_good_needs_one_that_is_good(folder: Path) -> None:
    for path in folder.glob("step-*"):
        (path / INDEX).unlink()
    with pytest.raises(ss.SoapstoneError, match=r"has no undamaged checkpoint: .*step-000000002"):
        loaded(folder, last_good=True)
    assert {path.name for path in folder.glob("step-*")} == {"step-000000001", "step-000000002"}


def test_a_checkpoint_of_an_old_format_is_not_damaged(folder: Path) -> None:
    path = newest(folder) / INDEX
    index = json.loads(path.read_text())
    path.write_text(json.dumps({"format": 3, **{k: v for k, v in index.items() if k not in ("checksum", "format")}}))
    for options in ({}, {"last_good": True}):
        with pytest.raises(ss.SoapstoneError, match=r"has format 3, by soapstone .*reads format 4"):
            loaded(folder, **options)
    assert path.exists()


@pytest.mark.parametrize("there", ["a folder", "a file"])
def test_a_save_takes_a_free_name(there: str, folder: Path) -> None:
    (newest(folder) / INDEX).unlink()
    place = folder / "step-000000003"
    place.mkdir() if there == "a folder" else place.touch()
    (place / "something").touch() if there == "a folder" else None

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        step(parallel, optimizer, work)
        parallel.save(folder, optimizer, step=3)

    on_ranks(act, make=plain())
    assert newest(folder).name == "step-000000003.1"
    assert loaded(folder)[0] == 3


def doubled() -> nn.Module:
    return plain()().double()


class ToDouble(nn.Module):
    """Takes float32 and trains in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()().double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x.double()).float()
        return found


class InSingle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x.double().float())
        return found


@pytest.mark.parametrize("optimizer", [ADAMW, SGD])
@pytest.mark.parametrize(("before", "after"), [(ToDouble, InSingle), (InSingle, ToDouble)])
def test_another_type_of_numbers_is_converted_only_if_asked(
    before: Any, after: Any, optimizer: Any, tmp_path: Path
) -> None:
    state = saved_twice(tmp_path, make=before, optimizer=optimizer)[-1]
    with pytest.raises(
        ss.SoapstoneError, match=r"is float\d\d in the checkpoint, but float\d\d in the model; --convert"
    ):
        loaded(tmp_path, make=after, optimizer=optimizer)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        parallel.load(tmp_path, optimizer, convert=True)
        found, kept = (
            parallel.state_dict(),
            [
                value.dtype
                for parameter in parallel.parameters()
                for key, value in optimizer.state[parameter].items()
                if isinstance(value, torch.Tensor) and key != "step"
            ],
        )
        step(parallel, optimizer, work)
        return found, kept

    for found, kept in on_ranks(act, make=after, optimizer=optimizer, shard="all"):
        wanted = after().state_dict()
        assert {*kept} == {wanted["inner.0.weight"].dtype}
        for name, tensor in state.items():
            assert torch.equal(found[name], tensor.to(wanted[name].dtype))


def test_numbers_that_overflow_are_not_converted(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        state = parallel.state_dict()
        state["inner.0.weight"][0, 0] = 1e300
        parallel.load_state_dict(state)
        parallel.save(tmp_path, step=1)

    on_ranks(act, make=ToDouble)
    with pytest.raises(ss.SoapstoneError, match=r"'model/inner\.0\.weight' in the checkpoint .* too large for float32"):
        on_ranks(lambda parallel, *_: parallel.load(tmp_path, convert=True), make=InSingle)


def test_optimizers_that_differ_between_ranks_are_not_saved(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        step(parallel, optimizer, work)
        for state in optimizer.state.values() if parallel._transport.rank else ():
            state["step"] += 1
        parallel.save(tmp_path, optimizer, step=1)

    with pytest.raises(ss.SoapstoneError, match=r"optimizers of ranks 0 and 1 differ in 'step' of '0\.weight'"):
        on_ranks(act, make=plain())
    assert latest(tmp_path) is None


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("instead", ["a pipe", "a folder", "a device"])
def test_weights_are_read_from_plain_files_only(suffix: str, instead: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    make: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo, "a folder": Path.mkdir, "a device": lambda path: path.symlink_to("/dev/zero"),
    }  # fmt: skip
    make[instead](path)
    with pytest.raises(ss.SoapstoneError, match="is not a plain file"):
        on_ranks(lambda parallel, *_: parallel.load_weights(path), make=plain())
