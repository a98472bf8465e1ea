"""Compiled segments train like one device; those that do not compile run as before, and are named."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.runtime.execute import Executor
from soapstone.runtime.plan import Plan, Run, Sync
from tests.distributed.launch import run_processes
from tests.support.microbatches import train_accumulating
from tests.support.models import ALL, captured
from tests.support.training import SEED, STEPS, Record, assert_same, train_plain, train_rank

# torch's compiler has warnings of its own.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Deprecation", "Future")]


def train_compiled(name: str, strategy: ss.Strategy, folder: Path) -> list[Record]:
    batches = ALL[name].batches(STEPS)

    def run(rank: int) -> Record:
        torch._inductor.config.compile_threads = 1  # these processes may not have any of their own
        torch.manual_seed(SEED)
        return train_rank(ALL[name].workload(), captured(name), strategy, None, batches, compile=True)

    found = run_processes(strategy.topology.num_devices, run, folder / "meeting")
    for record in found:
        if isinstance(record, Exception):
            raise next((r for r in found if isinstance(r, Exception) and "lost another" not in str(r)), record)
    return found


@pytest.mark.parametrize(
    ("name", "most_bytes"),
    [
        ("mlp", 10**9),
        pytest.param("mlp", 1, marks=pytest.mark.long),
        pytest.param("tokened", 10**9, marks=pytest.mark.long),
    ],
)
def test_compiled_segments_train_like_one_device(
    name: str, most_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soapstone.runtime.launch.SEGMENT_BYTES", most_bytes)
    topology = ss.Topology.parse("cpu:1x2")
    strategy = ss.baselines.data_parallel(captured(name), topology)
    if name == "mlp":
        strategy = strategy.replace({"first": replace(strategy["first"], shard="all", recompute=True)})
    else:  # some ops in parts of another kind, so that segments take and give
        strategy = strategy.replace({"first": ss.Configuration({}, (1,)), "head": ss.Configuration({}, (0,))})
    wanted = train_plain(ALL[name].workload(), ALL[name].batches(STEPS))
    for record in train_compiled(name, strategy, tmp_path):
        assert_same(record, wanted)


@pytest.mark.long
def test_compiled_segments_train_microbatches(tmp_path: Path) -> None:
    graph, case = captured("mlp"), ALL["mlp"]
    strategy = ss.baselines.grid(graph, ss.Topology.parse("cpu:1x2"), (1, 1, 2), 2)
    wanted = train_accumulating(case.workload(), graph, case.batches(STEPS), 2)
    for record in train_compiled("mlp", strategy, tmp_path):
        assert_same(record, wanted)


def test_long_segments_are_cut_where_gradients_are_complete() -> None:
    graph, topology = captured("gpt"), ss.Topology.parse("cpu:1x2")
    strategy, training = ss.baselines.data_parallel(graph, topology), ss.Training(bucket_bytes=1000)
    simulation = ss.simulate(graph, topology, strategy, training=training)

    def kinds(most_bytes: int | None) -> str:
        program = Plan(simulation, simulation.order, 2, most_bytes=most_bytes).program(0)
        events = (event for event in program if isinstance(event, Run | Sync))
        return "".join("s" if isinstance(event, Sync) else "b" if event.backward else "f" for event in events)

    cut = kinds(2000)
    assert cut.count("b") > kinds(None).count("b") + 2
    assert "bsb" in cut.replace("ss", "s").replace("ss", "s"), "no sum begins before the last of backward"


def test_what_does_not_compile_runs_as_before_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        def compiled(*inputs: torch.Tensor) -> None:
            raise RuntimeError("no kernel\nfor this\nand much more")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    batches = ALL["mlp"].batches(STEPS)

    def run(rank: int, transport: ThreadTransport) -> Record:
        strategy = ss.baselines.data_parallel(captured("mlp"), ss.Topology.parse("cpu:1x1"))
        return train_rank(ALL["mlp"].workload(), captured("mlp"), strategy, transport, batches, compile=True)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (record,) = ss.run_threads(1, run)
    assert_same(record, train_plain(ALL["mlp"].workload(), batches))
    (sentence,) = (str(warning.message) for warning in said if "does not compile" in str(warning.message))
    assert sentence == "first, second, last, mse_loss does not compile and runs as before: no kernel for this"


def test_a_backward_that_does_not_compile_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no kernel for backward")

    def refuse(module: Any, **options: Any) -> Any:
        return lambda *inputs: [Failing.apply(y) if y.requires_grad else y for y in module(*inputs)]  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch, "compile", refuse)
    record, said = _train_one("mlp")
    assert_same(record, train_plain(ALL["mlp"].workload(), ALL["mlp"].batches(STEPS)))
    assert [sentence for sentence in said if "no kernel for backward" in sentence]


def test_what_graphs_run_to_warm_up_changes_no_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch runs a function a few times on the sample inputs before it captures it."""

    def graphed(act: Any, samples: tuple[torch.Tensor, ...], allow_unused_input: bool) -> Any:
        for _ in range(3):
            act(*samples)
        return act

    made = Executor
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    monkeypatch.setattr(
        "soapstone.runtime.launch.Executor", lambda *args, **own: made(*args, **own | {"graphed": True})
    )
    record, said = _train_one("cnn")
    assert_same(record, train_plain(ALL["cnn"].workload(), ALL["cnn"].batches(STEPS)))
    assert not said


def _train_one(name: str) -> tuple[Record, list[str]]:
    """One rank, compiled, and what it was warned of."""
    topology = ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(captured(name), topology)

    def run(rank: int, transport: ThreadTransport) -> Record:
        torch.manual_seed(SEED)
        compiled = name == "mlp"
        batches = ALL[name].batches(STEPS)
        return train_rank(ALL[name].workload(), captured(name), strategy, transport, batches, compile=compiled)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (record,) = ss.run_threads(1, run)
    return record, [str(warning.message) for warning in said if "runs as before" in str(warning.message)]
