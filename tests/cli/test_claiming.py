"""The checkpoints that a run goes on from, with and without --resume, and its seed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import soapstone as ss
from soapstone.cli.claiming import Claim, claimed
from soapstone.processes import Process, machine
from soapstone.runtime.checkpoints import latest, lease
from soapstone.runtime.draws import ReplayDraws
from soapstone.runtime.transports import alone
from tests.runtime.test_checkpoint_files import saved

ALREADY = "has checkpoints already; add --resume"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for held in list(lease._leases.values()):
        held.release()


def attempt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, torchrun: int, number: int, *, done: bool = False,
    resume: bool = False, seed: int | None = None,
) -> Claim:  # fmt: skip
    """Act as ranks that a torchrun has restarted `number` times: save a checkpoint, and fail unless `done`."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
    monkeypatch.setattr(lease, "torchrun", lambda: Process(machine(), torchrun, "1"))
    with claimed(folder, resume, seed, alone()) as claim:
        if latest(folder) is None:
            saved(folder, seed=claim.seed)
        claim.is_done = done
    return claim


def test_a_restart_goes_on_from_its_own_runs_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not attempt(tmp_path, monkeypatch, 1, 0).goes_on
    for number in range(3):
        with pytest.raises(ss.SoapstoneError, match=ALREADY):  # another run, started by mistake
            attempt(tmp_path, monkeypatch, 2, number)
        assert attempt(tmp_path, monkeypatch, 1, number + 1).goes_on
    with pytest.raises(ss.SoapstoneError, match=ALREADY):
        attempt(tmp_path, monkeypatch, 1, 0)  # a new run by the same process
    assert attempt(tmp_path, monkeypatch, 1, 4, done=True).goes_on
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    with pytest.raises(ss.SoapstoneError, match=ALREADY):
        attempt(tmp_path, monkeypatch, 2, 0)
    assert attempt(tmp_path, monkeypatch, 2, 0, resume=True).goes_on
    assert attempt(tmp_path, monkeypatch, 2, 1).goes_on


def test_a_run_goes_on_with_the_seed_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt(tmp_path, monkeypatch, 1, 0, seed=-3).seed == -3
    kept = -3 & (2**63 - 1)
    assert attempt(tmp_path, monkeypatch, 1, 1).seed == kept
    assert attempt(tmp_path, monkeypatch, 1, 2, seed=-3).seed == -3
    with pytest.raises(ss.SoapstoneError, match=rf"was trained with --seed {kept}, .*; leave out --seed 5 to go on"):
        attempt(tmp_path, monkeypatch, 2, 0, resume=True, seed=5)
    assert attempt(tmp_path, monkeypatch, 2, 0, resume=True).seed == kept
    newest = latest(tmp_path)
    assert newest is not None
    (newest / "checkpoint.json").write_text("{")
    assert attempt(tmp_path, monkeypatch, 2, 0, resume=True, seed=5).seed == 5  # to load it says what is wrong


def test_masks_that_torch_draws_keep_their_seed_too() -> None:
    graph = ss.OperatorGraph((), (), (), 0)
    assert ReplayDraws(graph, torch.get_rng_state(), torch.device("cpu"), 7).state()["seed"] == 7


def test_a_folder_is_one_runs_while_it_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is refused, with and without --resume."""
    with claimed(tmp_path, False, None, alone()):
        child = os.fork()
        if child == 0:
            try:
                with claimed(tmp_path, True, None, alone()):
                    os._exit(1)
            except ss.SoapstoneError as error:
                os._exit(0 if "is in use by run" in str(error) else 2)
        assert os.waitpid(child, 0)[1] == 0
