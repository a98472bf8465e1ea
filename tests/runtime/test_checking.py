"""`--check` knows what a type can promise, and finds a wrong op all the same."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.parts.place import KERNELS, Place, call
from soapstone.runtime import checking
from soapstone.runtime.checking import check
from soapstone.runtime.locating import difference
from soapstone.runtime.transports import GlooTransport
from tests.distributed.launch import run_processes
from tests.support.models import ALL, seeded
from tests.support.seeds import cases, seeds

GPT2 = {"batch": 8, "vocab": 64, "length": 16, "width": 32, "heads": 4, "layers": 2}


def gpt2(dtype: str = "float32") -> ss.Workload:
    with seeded(3):
        return ss.zoo.load("gpt2", **GPT2).to(dtype)


def normed() -> ss.Workload:
    with seeded(3):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        return ss.Workload(
            model, (torch.randn(8, 3, 8, 8),), loss=nn.functional.cross_entropy, targets=(torch.randint(0, 4, (8,)),)
        )


def dropping() -> ss.Workload:
    return ALL["cnn"].workload().to("float32")


RARE = ["dropout", "local batch norm"]
LONG = ["autocast by CUDA's rules", "dropout and autocast"]  # as autocast on a CPU, but for some ops

CASES: dict[str, tuple[Callable[[], ss.Workload], dict[str, Any]]] = {
    "float32": (gpt2, {}),
    "bfloat16": (lambda: gpt2("bfloat16"), {}),
    "autocast": (gpt2, {"precision": "autocast:cpu"}),
    "autocast by CUDA's rules": (gpt2, {"precision": "autocast"}),
    "mixed": (gpt2, {"precision": "mixed"}),
    "local batch norm": (normed, {"batch_norm": "local"}),
    "dropout": (dropping, {}),
    "dropout and autocast": (dropping, {"precision": "autocast:cpu"}),
}


def checked(name: str, strategy_of: Callable[..., ss.Strategy], folder: Path, ranks: int = 2) -> str:
    """What each rank says, which must be the same. Processes, since dropout draws from the process's own generator."""
    make, options = CASES[name]
    graph, topology = ss.capture(make(), **options), ss.Topology.parse(f"cpu:1x{ranks}")
    strategy = strategy_of(graph, topology)

    def run(rank: int) -> str:
        return check(make(), graph, strategy, transport=GlooTransport(), place=torch.device("cpu"), seed=5)

    found = run_processes(ranks, run, folder / "meeting")
    for sentence in found:
        if isinstance(sentence, Exception):
            raise sentence
    assert len(set(found)) == 1
    return str(found[0])


@pytest.mark.parametrize("name", cases(CASES, long=LONG))
def test_data_parallelism_passes_in_any_type(name: str, tmp_path: Path) -> None:
    assert checked(name, ss.baselines.data_parallel, tmp_path).startswith("Checked 3 steps against ")


@pytest.mark.parametrize("seed", seeds(1, 2))
@pytest.mark.parametrize("name", cases(["bfloat16", "autocast by CUDA's rules", *RARE], long=["bfloat16", *RARE]))
def test_random_strategies_pass_in_any_type(name: str, seed: int, tmp_path: Path) -> None:
    assert checked(name, lambda graph, topology: ss.baselines.random(graph, topology, seed=seed), tmp_path, ranks=3)


@pytest.mark.parametrize("name", ["float32", "autocast"])
def test_what_a_type_does_not_promise_is_asked_in_float64(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where rounding puts a ReLU on the other side of zero: here nothing else is let pass but losses."""
    monkeypatch.setattr(checking, "_allowed", lambda work, graph, errors, transport: {
        name: 1.0 if name.startswith("loss") else 1e-30 for name in errors
    })  # fmt: skip
    assert "in float64 it is" in checked(name, ss.baselines.data_parallel, tmp_path)


@pytest.mark.parametrize(
    "name", cases(["float32", "bfloat16", "autocast", "mixed", *LONG[:1]], long=[*LONG, "bfloat16"])
)
def test_a_wrong_op_is_found_in_any_type(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(place: Place, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = call(place, inputs)
        whole = all((lo, hi) == (0, dim.size) for dim, (lo, hi) in zip(place.step.dims, place.dims))
        return y if whole else y * 1.3

    monkeypatch.setitem(KERNELS, "gelu", wrong)
    with pytest.raises(ss.SoapstoneError, match=r"does not train like one device.*op 'blocks.0.* is the first"):
        checked(name, ss.baselines.data_parallel, tmp_path)


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [
        ([nan, 1.0], [0.0, 1.0], inf),
        ([nan, 1.0], [nan, 1.0], 0.0),
        ([nan, 1.0], [inf, 1.0], inf),
        ([inf, 1.0], [-inf, 1.0], inf),
        ([inf, 1.5], [inf, 1.0], 0.5),
        ([0.0, 0.0], [nan, 0.0], inf),
    ],
)
def test_what_is_not_finite_differs_from_all_but_itself(found: list[float], wanted: list[float], error: float) -> None:
    assert difference(torch.tensor(found), torch.tensor(wanted)) == error
