"""The commands that need ranks."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from tests.support.models import CASES

from .launch import Done, local_ranks, quick_calibration, run_command, run_processes


def on_ranks(folder: Path, *words: str, ranks: int = 2) -> Done:
    """A command on so many ranks: what rank 0 prints, and whether all end well."""
    with local_ranks(ranks) as environments:
        first, *others = run_command(folder, words, environments)
    return Done(max([first.status, *(other.status for other in others)]), first.out, first.err)


def soapstone(folder: Path, *words: str) -> Done:
    return run_command(folder, words)[0]


MODEL = ("lenet", "--batch", "8", "--precision", "float64")


def test_calibration_becomes_a_topology_that_training_is_predicted_with(tmp_path: Path) -> None:
    here, strategy, trace = tmp_path / "here.yaml", tmp_path / "s.json", tmp_path / "trace.json"
    with quick_calibration():
        done = on_ranks(tmp_path, "calibrate", "-o", str(here))
    assert done.status == 0, done.err
    assert "An all-reduce among all 2 ranks" in done.out
    (link,) = ss.Topology.load(here).links
    assert link.bandwidth > 0
    assert link.summing is not None
    found = soapstone(tmp_path, "search", *MODEL, "-t", str(here), "-o", str(strategy), "--proposals", "300")
    assert found.status == 0, found.err
    options = ("-t", str(here), "-s", str(strategy), "--steps", "3", "--check", "--trace", str(trace), "--json")
    trained = on_ranks(tmp_path, "train", *MODEL, *options)
    assert trained.status == 0, trained.err
    assert "Checked 3 steps against one device" in trained.err
    facts: dict[str, Any] = json.loads(trained.out)
    assert facts["step"] > 0
    assert facts["predicted"] > 0
    assert len(facts["losses"]) == 6
    assert len(facts["idle"]) == 2
    assert all(0 <= idle <= 1 for idle in facts["idle"])
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"forward", "backward"} <= {event.get("cat") for event in events}
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}


def test_training_resumes_with_another_strategy_and_more_ranks(tmp_path: Path) -> None:
    def trained(ranks: int, strategy: str, steps: int, *options: str) -> list[float]:
        case = ("-t", f"cpu:1x{ranks}", "-s", strategy, "--steps", str(steps), "--optimizer", "adamw", "--json")
        done = on_ranks(tmp_path, "train", *MODEL, *case, *options, ranks=ranks)
        assert done.status == 0, done.err
        losses: list[float] = json.loads(done.out)["losses"]
        return losses

    saved = ("--save", str(tmp_path / "saved"))
    before = trained(2, "data", 2, *saved, "--every", "2", "--resume")  # there is nothing yet to resume
    after = trained(3, "fsdp", 4, *saved, "--resume", "--keep", "1")
    assert [*before, *after] == pytest.approx(trained(2, "data", 4), rel=1e-9)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["step-000000007"]


def test_training_goes_on_from_the_newest_undamaged_checkpoint_in_another_type(tmp_path: Path) -> None:
    folder, model = tmp_path / "saved", ("lenet", "--batch", "8", "-t", "cpu:1x1", "--save", str(tmp_path / "saved"))
    done = on_ranks(tmp_path, "train", *model, "--precision", "float64", "--steps", "2", "--every", "2", ranks=1)
    assert done.status == 0, done.err
    (folder / "step-000000005" / "checkpoint.json").unlink()
    weights = tmp_path / "weights.pt"
    refused = soapstone(tmp_path, "export-weights", str(folder), "-o", str(weights))
    assert "step-000000005/checkpoint.json: No such file" in refused.err
    assert "--last-good" in refused.err
    exported = soapstone(tmp_path, "export-weights", str(folder), "-o", str(weights), "--last-good", "--json")
    assert "step-000000005/checkpoint.json: No such file" in exported.err
    assert json.loads(exported.out)["checkpoint"] == str(folder / "step-000000004")
    done = on_ranks(tmp_path, "train", *model, "--resume", "--last-good", "--convert", "--steps", "3", ranks=1)
    assert done.status == 0, done.err
    assert "damaged-step-000000005 now." in done.err
    assert f"{folder} has 4 steps, to go on from." in done.err
    assert {path.name for path in folder.glob("*step*")} == {
        "damaged-step-000000005", "step-000000004", "step-000000006",
    }  # fmt: skip


def test_a_killed_rank_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    """In a loop of one's own, without torchrun."""
    case = CASES["mlp"]
    graph, topology = ss.capture(case.workload()), ss.Topology.parse("cpu:1x2")
    (batch,) = case.batches(1)

    def run(rank: int) -> None:
        strategy = ss.baselines.data_parallel(graph, topology)
        parallel = ss.parallelize(case.workload(), graph, topology, strategy)
        for step in itertools.count():
            parallel.step(*batch)
            if step == rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    heard, nothing = run_processes(2, run, tmp_path / "meeting")
    assert isinstance(heard, ss.SoapstoneError)
    assert str(heard).startswith("rank 1 was killed, or ended without a word; last seen ")
    assert isinstance(nothing, EOFError)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("calibrate",), "start it with torchrun"),
        (("train", "lenet", "-t", "cpu:1x2"), "start it with torchrun"),
        (("plan", "lenet", "-t", "cpu:1x2", "--rank", "2"), "there is no rank 2"),
        (("plan", "lenet", "-t", "cpu:1x2", "-s", "nowhere.json"), "there is no strategy 'nowhere.json'"),
        (("train", "lenet", "-t", "cpu:1x2", "--resume"), "add --save FOLDER"),
        (("train", "lenet", "-t", "cpu:1x2", "--save", "/proc/x"), "cannot write to --save /proc/x"),
    ],
)
def test_bad_calls_end_in_a_sentence(arguments: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    done = soapstone(tmp_path, *arguments)
    assert done.status == 2
    assert wanted in done.err
    assert "Traceback" not in done.err


def test_ranks_that_are_too_few_are_told(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, "train", *MODEL, "-t", "cpu:1x3")
    assert done.status != 0
    assert "soapstone: rank 0: there are 2 ranks for 3 devices; start torchrun with --nproc-per-node 3" in done.err
    assert "ranks=" not in done.err


def test_a_plan_is_printed_in_words(tmp_path: Path) -> None:
    done = soapstone(tmp_path, "plan", *MODEL, "-t", "cpu:1x2", "-s", "data")
    assert done.status == 0
    for word in ("forward", "backward", "combine", "sync", "Rank 0: 3 segments"):
        assert word in done.out
    rows = json.loads(soapstone(tmp_path, "plan", *MODEL, "-t", "cpu:1x2", "--rank", "1", "--json").out)
    assert [row["kind"] for row in rows][:3] == ["forward", "combine", "backward"]
