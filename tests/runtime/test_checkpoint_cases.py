"""Checkpoints of what is rare: parameters of one number, empty buffers, odd optimizers, calls in another order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel
from soapstone.runtime.checkpoints import folders, index, whole_state
from tests.runtime.test_checkpoint_files import ADAMW, RANKS, on_ranks, saved, step

SHARDS = ("none", "optimizer", "all")


class Scaled(nn.Module):
    """With a trained number, and a buffer without elements."""

    none: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(6, 4), nn.Parameter(torch.tensor(1.5))
        self.register_buffer("none", torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(x) * self.scale
        return found


def plain(*more: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), *more)


def stepped(count: int) -> Callable[..., list[float]]:
    return lambda parallel, optimizer, work: [step(parallel, optimizer, work) for _ in range(count)]


@pytest.mark.parametrize("optimizer", [ADAMW, lambda p: torch.optim.NAdam(p, lr=0.01)])
@pytest.mark.parametrize("before", SHARDS)
@pytest.mark.parametrize("after", SHARDS)
def test_a_parameter_of_one_number_goes_on(before: str, after: str, optimizer: Any, tmp_path: Path) -> None:
    def save(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        step(parallel, optimizer, work)
        parallel.save(tmp_path, optimizer, step=1)
        return stepped(2)(parallel, optimizer, work)

    def load(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        assert parallel.load(tmp_path, optimizer) == 1
        return stepped(2)(parallel, optimizer, work)

    wanted = on_ranks(save, shard=before, make=Scaled, optimizer=optimizer)[0]
    assert on_ranks(load, shard=after, make=Scaled, optimizer=optimizer)[0] == pytest.approx(wanted, rel=1e-6)
    assert whole_state(tmp_path)["none"].shape == (0, 3)


def test_a_load_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> int:
        step(parallel, optimizer, work)
        parallel.save(tmp_path, optimizer, step=7, wait=False)
        return parallel.load(tmp_path, optimizer)

    assert on_ranks(act, make=plain()) == [7] * RANKS


def test_all_ranks_take_the_checkpoint_that_rank_0_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, make=plain())
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "later")
    looks = [0]

    def newest(folder: Path) -> list[Path]:
        """Another job finishes a save between two ranks' looks."""
        found = folders.candidates(folder)
        looks[0] += 1
        if (folder / "later").exists():
            (folder / "later").rename(folder / "step-000000002")
        return found

    monkeypatch.setattr("soapstone.runtime.checkpoints.choosing.candidates", newest)
    on_ranks(lambda parallel, optimizer, _: parallel.load(tmp_path, optimizer), make=plain())
    assert looks == [1]


def test_a_load_forgets_gradients_that_were_adding_up(tmp_path: Path) -> None:
    saved(tmp_path, make=plain())

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> dict[str, torch.Tensor]:
        parallel.load(tmp_path, optimizer)
        parallel.step(*work.batch)
        wanted = parallel.gradients()
        parallel.step(*work.batch, sync=False)
        parallel.load(tmp_path, optimizer)
        parallel.step(*work.batch)
        found = parallel.gradients()
        return {name: found[name] - wanted[name] for name in wanted}

    assert all(not difference.any() for difference in on_ranks(act, make=plain())[0].values())


def test_an_optimizer_that_has_stepped_goes_back_to_before_its_first(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        parallel.save(tmp_path, optimizer, step=0)
        first = stepped(3)(parallel, optimizer, work)
        assert parallel.load(tmp_path, optimizer) == 0
        return first, stepped(3)(parallel, optimizer, work)

    for first, again in on_ranks(act, make=plain(), shard="optimizer"):
        assert first == again


def test_a_checkpoint_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, make=plain(nn.Linear(4, 4)))
    with pytest.raises(ss.SoapstoneError, match=r"is of another model: only one of them has '3\."):
        on_ranks(lambda parallel, optimizer, _: parallel.load(tmp_path, optimizer), make=plain())


def test_a_checkpoint_is_no_folder_to_save_in(tmp_path: Path) -> None:
    saved(tmp_path, make=plain())
    with pytest.raises(ss.SoapstoneError, match="is a checkpoint itself; name the folder that it is in"):
        saved(tmp_path / "step-000000001", make=plain())


def test_a_prune_that_is_killed_leaves_no_part_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (tmp_path / folders.name_of(number)).mkdir()
        (tmp_path / folders.name_of(number) / index.NAME).touch()
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    folders.prune(tmp_path, 1)
    assert [found.step for found in folders.saved_in(tmp_path)] == [2]
    monkeypatch.undo()
    folders.remove_halves(tmp_path)
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-000000002"]


def test_an_index_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved(tmp_path, make=plain())
    monkeypatch.setattr("soapstone.runtime.checkpoints.index.MAX_VALUES", 50)
    with pytest.raises(ss.SoapstoneError, match="boxes are too many for a checkpoint"):
        saved(tmp_path, make=plain())
    monkeypatch.undo()
    assert whole_state(tmp_path).keys() == before.keys()


class Listing(torch.optim.SGD):
    """Keeps a list of losses for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1.0]
        return super().step(closure)


def test_state_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(ss.SoapstoneError, match=r"Listing's 'seen' of '0\.weight', a list, cannot be saved"):
        saved(tmp_path, make=plain(), optimizer=lambda p: Listing(p, lr=0.1))


@pytest.mark.parametrize("shard", SHARDS)
def test_nothing_that_reads_gradients_makes_some(shard: str) -> None:
    """Else an optimizer would decay weights on the rank that read them, after a step that is skipped."""

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> bool:
        step(parallel, optimizer, work)
        parallel.load_state_dict(parallel.state_dict())
        parallel._store.drop_gradients()
        parallel.clip_grad_norm_(1.0)
        parallel.gradients()
        return all(parameter.grad is None for parameter in parallel.parameters())

    assert on_ranks(act, make=plain(), shard=shard) == [True] * RANKS
