"""The training loops of the examples, started as a user starts them, against plain PyTorch and the plain Trainer."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
LOOP, TRAINER = ROOT / "examples" / "training_loop.py", ROOT / "examples" / "trainer.py"
EPOCHS = 2
LINE = re.compile(r"^step (\d+): (.*)$", re.MULTILINE)

Found = dict[tuple[int, str], float]  # by step, and what it is


def torchrun(script: Path, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, str(script), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(script: Path, *arguments: str) -> str:
    done = subprocess.run(torchrun(script, *arguments), env=environment(), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_until(step: int, script: Path, *arguments: str) -> str:
    """What it prints up to a step, in which it is terminated, as a job that has to make room."""
    process = subprocess.Popen(
        torchrun(script, *arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    said = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.startswith(f"step {step}:"):
                process.terminate()
                break
        assert process.wait(HANG) != 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return said


def figures(said: str) -> Found:
    pairs = ((int(step), pair.split()) for step, line in LINE.findall(said) for pair in line.split(", "))
    return {(step, name): float(value) for step, (name, value) in pairs}


def plain_loop(loop: SimpleNamespace) -> Iterator[tuple[int, str, float]]:
    """The same on one device: the accumulated batches as one, autograd, torch's own clipping."""
    work, (images, labels) = loop.workload(), loop.digits()
    model, seen, unseen = work.model, slice(loop.TEST, None), slice(loop.TEST)
    orders = [loop.batches(len(images[seen]), epoch).view(-1, loop.BATCH * loop.ACCUMULATE) for epoch in range(EPOCHS)]
    per_epoch = len(orders[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=loop.LEARNING_RATE)
    schedule = LambdaLR(optimizer, lambda step: loop.warmup_and_cosine(step, EPOCHS * per_epoch))
    for step, samples in enumerate(torch.cat(orders), 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[seen][samples]), labels[seen][samples])
        loss.backward()  # type: ignore[no-untyped-call]
        yield step - 1, "loss", loss.item()
        yield step - 1, "norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        yield step - 1, "lr", float(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
        if step % per_epoch == 0:
            with torch.no_grad():
                right = model(images[unseen]).argmax(1) == labels[unseen]
            yield step, "accuracy", right.double().mean().item()


def test_a_loop_that_is_terminated_and_started_again_trains_as_one_device_does(tmp_path: Path) -> None:
    saved, traces, board = (str(tmp_path / name) for name in ("saved", "traces", "board"))
    case = ("--epochs", str(EPOCHS), "--save", saved, "--every", "5")
    before = figures(run_until(7, LOOP, *case))
    after = figures(run(LOOP, *case, "--profile", traces, "--tensorboard", board))
    loop = SimpleNamespace(**runpy.run_path(str(LOOP)))
    plain = {(step, name): value for step, name, value in plain_loop(loop)}
    assert (7, "loss") in before
    assert min(after)[0] >= 5  # and in the middle of an epoch, of 24 steps
    assert before == pytest.approx({place: plain[place] for place in before}, rel=1e-9)
    assert before | after == pytest.approx(plain, rel=1e-9)
    assert sorted(path.name.split(".")[0] for path in Path(traces).iterdir()) == ["rank0", "rank1"]
    assert [path.name.split(".")[0] for path in Path(board).iterdir()] == ["events"]  # of rank 0


def test_without_tensorboard_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorboard" else found(name, *rest)
    )
    monkeypatch.setattr(sys, "argv", ["training_loop.py", "--tensorboard", "runs"])
    with pytest.raises(SystemExit, match="pip install tensorboard"):
        runpy.run_path(str(LOOP), run_name="__main__")


def history(folder: Path) -> Found:
    """What a Trainer has logged, by its newest checkpoint."""
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    rows = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return {(row["step"], name): row[name] for row in rows for name in names if name in row}


def plain_trainer(folder: Path) -> Found:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    example: dict[str, Any] = runpy.run_path(str(TRAINER))
    data, arguments = example["rows"](), example["arguments"](str(folder))
    example["Trainer"](example["model"](), arguments, train_dataset=data[:72], eval_dataset=data[72:]).train()
    return history(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of transformers and accelerate
def test_the_trainer_of_hugging_face_logs_what_it_does_on_one_process(tmp_path: Path) -> None:
    plain = plain_trainer(tmp_path / "plain")
    run(TRAINER, str(tmp_path / "ours"))
    assert len(plain) == 32
    assert history(tmp_path / "ours") == pytest.approx(plain, rel=1e-5)
    assert (tmp_path / "ours" / "model.safetensors").exists()


@pytest.mark.long
def test_the_trainer_of_hugging_face_resumes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run(TRAINER, str(tmp_path))
    whole = history(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint-10")
    assert max(history(tmp_path))[0] == 5
    run(TRAINER, str(tmp_path))
    assert history(tmp_path) == pytest.approx(whole, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("setting", [{"label_smoothing_factor": 0.1}, {"bf16": True}], ids=str)
def test_what_has_no_part_in_a_step_is_refused_by_the_trainer(tmp_path: Path, setting: dict[str, Any]) -> None:
    pytest.importorskip("accelerate")
    example: dict[str, Any] = runpy.run_path(str(TRAINER))
    with pytest.raises(ValueError, match=f"leave out.*{next(iter(setting))}"):
        example["ParallelTrainer"](example["model"](), example["arguments"](str(tmp_path), **setting), eval_dataset=[])
