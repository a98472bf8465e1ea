"""What checkpoints are on disk: whole or not there, never wrong, and a plain file for others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import soapstone as ss
from soapstone.runtime import Parallel, ThreadTransport
from soapstone.runtime.checkpoints import latest, storage, whole_state, write_weights
from soapstone.strategy import Configuration
from tests.support.models import ALL, ONE_AT_A_TIME

RANKS = 2


class Odd(nn.Module):
    """Reads half of one parameter, none of another, ties a third, counts its steps and drops out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.unread = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(3))
        self.first, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(6, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.rows[2:6].T @ self.rows[2:6]
        found: torch.Tensor = self.norm(self.first(x)) + self.last(x)
        return found


def work_of(seed: int, make: Callable[[], nn.Module] = Odd) -> ss.Workload:
    torch.manual_seed(seed)
    model, x, y = make(), torch.randn(4, 6), torch.randint(0, 4, (4,))
    return ss.Workload(model, (x,), loss=nn.functional.cross_entropy, targets=(y,))


Act = Callable[[Parallel, torch.optim.Optimizer, ss.Workload], Any]
ADAMW: Any = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731


def on_ranks(
    act: Act, *, seed: int = 0, shard: str = "none", optimizer: Any = ADAMW, split: bool = False, make: Any = Odd
) -> list[Any]:
    """What `act` returns on each rank of a data-parallel strategy, or one that splits channels."""
    works = [work_of(seed, make) for _ in range(RANKS)]
    with ONE_AT_A_TIME:
        graph = ss.capture(works[0])
    topology = ss.Topology.parse(f"cpu:1x{RANKS}")
    strategy = ss.baselines.random(graph, topology, seed=1) if split else ss.baselines.data_parallel(graph, topology)
    trained = {op.name for op, tensors in zip(graph.ops, graph.trains) if tensors}
    shards = {n: Configuration(c.degrees, c.devices, shard=shard) for n, c in strategy.items() if n in trained}

    def run(rank: int, transport: ThreadTransport) -> Any:
        parallel = ss.parallelize(works[rank], graph, topology, strategy.replace(shards), transport=transport)
        return act(parallel, optimizer(parallel.parameters()), works[rank])

    return ss.run_threads(RANKS, run, timeout=60)


def step(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> float:
    loss = parallel.step(*work.batch).item()
    optimizer.step()
    return loss


def saved(folder: Path, **how: Any) -> dict[str, torch.Tensor]:
    """The state that a checkpoint of one step was saved with."""

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        step(parallel, optimizer, work)
        parallel.save(folder, optimizer, step=1)
        return parallel.state_dict()

    found: dict[str, torch.Tensor] = on_ranks(act, **how)[0]
    return found


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


def test_what_no_rank_reads_is_saved_too(tmp_path: Path) -> None:
    state = saved(tmp_path, shard="all")

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        assert parallel.load(tmp_path, optimizer) == 1
        return parallel.state_dict()

    for found in on_ranks(act, seed=7, split=True):  # a model with other first weights
        assert_equal(found, state)


def test_a_save_that_is_not_waited_for_has_the_numbers_of_its_moment(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        step(parallel, optimizer, work)
        state = parallel.state_dict()
        parallel.save(tmp_path, optimizer, step=1, wait=False)
        step(parallel, optimizer, work)
        parallel.save(tmp_path, optimizer, step=2, wait=False)
        parallel.saved()
        parallel.saved()  # there is nothing more to wait for
        return state

    state = on_ranks(act)[0]
    assert_equal(whole_state(tmp_path / "step-000000001"), state)
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-000000001", "step-000000002"]


ALONE = """
import sys
from pathlib import Path
from soapstone.runtime.checkpoints import saving
from tests.runtime.test_checkpoint_files import on_ranks, step

saving.LAST_PATIENCE = 0.2
saving.write_tensors = lambda *_: None  # as of a rank that is gone

def act(parallel, optimizer, work):
    step(parallel, optimizer, work)
    parallel.save(Path(sys.argv[1]), optimizer, step=1, wait=False)

on_ranks(act)
"""


def test_a_program_that_is_over_does_not_wait_for_a_rank_that_is_gone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 0
    assert latest(tmp_path) is None


def test_a_step_that_is_saved_again_replaces_the_other_once_it_is_whole(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        for _ in range(3):
            step(parallel, optimizer, work)
            parallel.save(tmp_path, optimizer, step=5)
        with pytest.raises(ss.SoapstoneError, match="has a checkpoint of step 5, and this is step 4"):
            parallel.save(tmp_path, optimizer, step=4)
        return parallel.state_dict()

    state = on_ranks(act)[0]
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-000000005.2"]
    assert_equal(whole_state(tmp_path), state)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("lame", range(RANKS))
def test_where_one_rank_cannot_write_all_ranks_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lame: int, wait: bool
) -> None:
    state = saved(tmp_path)
    plain = storage.write_tensors

    def full(folder: Path, rank: int, ranks: int, own: str, values: list[torch.Tensor]) -> None:
        if rank == lame:
            raise OSError(28, "No space left on device")
        plain(folder, rank, ranks, own, values)

    monkeypatch.setattr("soapstone.runtime.checkpoints.saving.write_tensors", full)

    def save(parallel: Parallel, optimizer: torch.optim.Optimizer) -> None:
        parallel.save(tmp_path, optimizer, step=2, wait=wait)
        parallel.saved()

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        step(parallel, optimizer, work)
        wanted = (
            rf"rank {lame}: cannot write a checkpoint to .*: No space left on device; make room .*step-000000001 is"
        )
        with pytest.raises(ss.SoapstoneError, match=wanted):
            save(parallel, optimizer)
        step(parallel, optimizer, work)  # and training can go on

    on_ranks(act)
    assert_equal(whole_state(tmp_path), state)
    monkeypatch.undo()
    saved(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").glob("*step-*")] == ["step-000000001"]


def damaged(folder: Path) -> list[Path]:
    path = latest(folder)
    assert path is not None
    return sorted(path.iterdir())


def test_a_flipped_bit_of_a_weight_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    file = next(path for path in damaged(tmp_path) if path.name == "rank-00001.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 4
    file.write_bytes(raw)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        before = parallel.state_dict()
        with pytest.raises(ss.SoapstoneError, match=r"rank 1: cannot read .*not those that were written"):
            parallel.load(tmp_path, optimizer)
        assert_equal(parallel.state_dict(), before)

    on_ranks(act)
    with pytest.raises(ss.SoapstoneError, match="not those that were written"):
        whole_state(tmp_path)


def test_files_of_two_checkpoints_are_told_apart(tmp_path: Path) -> None:
    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        for number in (1, 2):
            step(parallel, optimizer, work)
            parallel.save(tmp_path, optimizer, step=number)

    on_ranks(act)
    first, second = (tmp_path / f"step-00000000{number}" / "rank-00001.safetensors" for number in (1, 2))
    shutil.copyfile(first, second)
    with pytest.raises(ss.SoapstoneError, match="it is of another checkpoint"):
        whole_state(tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_plain_weights_go_out_and_come_in(tmp_path: Path, suffix: str) -> None:
    state = saved(tmp_path / "saved")
    file = tmp_path / f"model.{suffix}"
    write_weights(file, whole_state(tmp_path / "saved"))
    model = work_of(3).model
    model.load_state_dict(load_file(file) if suffix == "safetensors" else torch.load(file, weights_only=True))
    assert_equal(model.state_dict(), state)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        parallel.load_weights(file)
        return parallel.state_dict()

    for found in on_ranks(act, seed=5):
        assert_equal(found, state)


def test_a_plain_file_may_have_tied_weights_once(tmp_path: Path) -> None:
    state = work_of(4).model.state_dict()
    file = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in state.items() if name != "last.weight"}, file)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> Any:
        parallel.load_weights(file)
        return parallel.state_dict()

    assert_equal(on_ranks(act)[1], state)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("a pickle ran",))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.pt", lambda path: torch.save({"rows": Evil()}, path)),
        ("model.pt", lambda path: path.write_bytes(b"no weights")),
        ("model.pt", lambda path: torch.save([torch.zeros(2)], path)),
        ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 64)),
        ("model.safetensors", lambda path: save_file({"rows": torch.zeros(2)}, path)),
        ("model.npz", lambda path: path.write_bytes(b"")),
        ("none.pt", lambda path: None),
    ],
)
def test_what_is_no_plain_file_is_refused_on_all_ranks(
    tmp_path: Path, name: str, content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    content(tmp_path / name)

    def act(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        with pytest.raises(ss.SoapstoneError):
            parallel.load_weights(tmp_path / name)

    on_ranks(act)
    assert "a pickle ran" not in capsys.readouterr().out


def test_an_optimizer_is_what_it_was(tmp_path: Path) -> None:
    saved(tmp_path)

    def other(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        with pytest.raises(ss.SoapstoneError, match="was saved with AdamW, this is SGD"):
            parallel.load(tmp_path, optimizer)
        assert parallel.load(tmp_path) == 1

    def same(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        parallel.load(tmp_path, optimizer)
        group = optimizer.param_groups[0]
        assert (group["lr"], group["betas"]) == (0.01, (0.9, 0.999))
        assert all(state["step"] == 1 for state in optimizer.state.values())

    on_ranks(other, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    on_ranks(same, optimizer=lambda p: torch.optim.AdamW(p, lr=0.5, betas=(0.5, 0.5)))


def test_adafactor_goes_on_where_parameters_are_whole(tmp_path: Path) -> None:
    def adafactor(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(parameters, lr=0.1)

    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def all_steps(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> list[float]:
        found = [step(parallel, optimizer, work)]
        parallel.save(tmp_path, optimizer, step=1)
        return [*found, step(parallel, optimizer, work), step(parallel, optimizer, work)]

    def later(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> list[float]:
        parallel.load(tmp_path, optimizer)
        return [step(parallel, optimizer, work), step(parallel, optimizer, work)]

    whole = on_ranks(all_steps, optimizer=adafactor, make=plain)[0]
    assert on_ranks(later, optimizer=adafactor, make=plain)[0] == pytest.approx(whole[1:], rel=1e-6)

    def refused(parallel: Parallel, optimizer: torch.optim.Optimizer, work: ss.Workload) -> None:
        with pytest.raises(ss.SoapstoneError, match="is of the whole parameter"):
            parallel.load(tmp_path, optimizer)

    on_ranks(refused, optimizer=adafactor, shard="all", make=plain)


def test_dropout_goes_on_in_the_way_that_it_was_saved(tmp_path: Path) -> None:
    work = ALL["tokened"].workload()
    with ONE_AT_A_TIME:
        graph = ss.capture(work)
    topology = ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)

    def act(dropout: str) -> Callable[[int, ThreadTransport], None]:
        def run(_: int, transport: ThreadTransport) -> None:
            parallel = ss.parallelize(work, graph, topology, strategy, transport=transport, dropout=dropout)
            if dropout == "counter":
                parallel.save(tmp_path, step=0)
            else:
                parallel.load(tmp_path)

        return run

    ss.run_threads(1, act("counter"))
    with pytest.raises(ss.SoapstoneError, match="dropout='counter'"):
        ss.run_threads(1, act("replay"))
