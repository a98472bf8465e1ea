"""Folders of torch.distributed.checkpoint: what FSDP2, DDP and plain scripts write is gone on with here, and the other
way round, with the losses of a run without a break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import soapstone as ss
from soapstone.runtime import Parallel

from .launch import run_processes

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of its own functions
RANKS, SAMPLES, STEPS = 2, 8, 2
Optimizers = dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
}


class Model(nn.Module):
    """With a tied weight, a buffer that is saved, one that is not, and lengths that ranks do not divide."""

    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((5,), 1.5))
        self.register_buffer("offset", torch.full((5,), 0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale + self.offset
        found: torch.Tensor = self.head(self.norm(x))
        return found


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, 11, (SAMPLES,), generator=generator) for _ in range(2))  # type: ignore[return-value]


def groups(parameters: Iterator[tuple[str, nn.Parameter]] | Any, number: int) -> list[dict[str, Any]]:
    """One, or weights with decay and the rest without."""
    named = list(parameters)
    if number == 1:
        return [{"params": [p for _, p in named]}]
    is_weight = [name.endswith("weight") and "norm" not in name for name, _ in named]
    return [
        {"params": [p for (_, p), own in zip(named, is_weight) if own], "weight_decay": 0.1},
        {"params": [p for (_, p), own in zip(named, is_weight) if not own], "weight_decay": 0.0},
    ]


class Script:
    """What a user has who trains without us: FSDP2, DDP or neither."""

    def __init__(self, kind: str, optimizer: str, number: int, seed: int = 0) -> None:
        self.model: nn.Module = model(seed)
        if kind == "fsdp":
            for layer in self.model.layers:  # type: ignore[union-attr]
                fully_shard(layer)
            fully_shard(self.model)
        if kind == "ddp":
            self.model = DistributedDataParallel(self.model)
        self.is_alone = kind == "plain"
        self.optimizer = OPTIMIZERS[optimizer](groups(self.model.named_parameters(), number))

    def losses(self, steps: int) -> list[float]:
        x, y = batch()
        if not self.is_alone:
            own = slice(dist.get_rank() * SAMPLES // RANKS, (dist.get_rank() + 1) * SAMPLES // RANKS)
            x, y = x[own], y[own]
        found = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total = loss.detach().clone()
            if not self.is_alone:
                dist.all_reduce(total)
            found.append(float(total) / (1 if self.is_alone else RANKS))
        return found

    def save(self, folder: Path, layout: str = "nested") -> None:
        state, kept = get_state_dict(self.model, self.optimizer)
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        saved: dict[str, Any] = {
            "nested": lambda: {"model": state, "optim": kept, "step": STEPS},
            "app": lambda: {"app": {"model": state, "optim": kept}},
            "titan": lambda: {
                **state,
                "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=flat),
                "train_state": {"step": torch.tensor(STEPS)},
            },
            "raw": lambda: {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()},
        }[layout]()
        dcp.save(saved, checkpoint_id=folder, no_dist=self.is_alone)

    def load(self, folder: Path) -> int:
        state, kept = get_state_dict(self.model, self.optimizer)
        saved = {"model": state, "optim": kept, "step": -1}
        dcp.load(saved, checkpoint_id=folder, no_dist=self.is_alone)
        set_state_dict(self.model, self.optimizer, model_state_dict=state, optim_state_dict=saved["optim"])  # type: ignore[arg-type]
        return int(saved["step"])  # type: ignore[call-overload]


def workload() -> ss.Workload:
    x, y = batch()
    return ss.Workload(model(seed=7), (x,), loss=nn.functional.cross_entropy, targets=(y,))


@cache
def graph() -> ss.OperatorGraph:
    return ss.capture(workload())


class Ours:
    """The same training under a strategy, from other weights."""

    def __init__(self, baseline: str, optimizer: str, number: int, ranks: int = RANKS, transport: Any = None) -> None:
        topology = ss.Topology.parse(f"cpu:1x{ranks}")
        strategy = ss.baselines.BASELINES[baseline](graph(), topology)
        self.parallel: Parallel = ss.parallelize(workload(), graph(), topology, strategy, transport=transport)
        self.optimizer = OPTIMIZERS[optimizer](groups(self.parallel.named_parameters(), number))
        for group in self.optimizer.param_groups:
            group["params"] = group["params"] or list(self.parallel.parameters())[:0]

    def losses(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(self.parallel.step(*batch()).item())
            self.optimizer.step()
        return found


def close(found: list[float]) -> Any:
    return pytest.approx(found, rel=1e-10, abs=0)


CASES = [("fsdp", "nested", "adamw", 2, "fsdp"), ("fsdp", "titan", "adamw", 2, "megatron"),
         ("ddp", "app", "momentum", 1, "fsdp"), ("fsdp", "nested", "sgd", 1, "data")]  # fmt: skip


@pytest.mark.timeout(240)
def test_training_goes_on_in_both_directions(tmp_path: Path) -> None:
    graph()

    def run(rank: int) -> list[tuple[str, list[float], list[float], int]]:
        found = []
        for kind, layout, optimizer, number, baseline in CASES:
            case = f"{kind}-{layout}-{optimizer}"
            script = Script(kind, optimizer, number)
            script.losses(STEPS)
            script.save(tmp_path / case, layout)
            ours = Ours(baseline, optimizer, number)
            step = ours.parallel.load(tmp_path / case, ours.optimizer)
            wanted = script.losses(STEPS)
            found.append((f"{case}, read", wanted, ours.losses(STEPS), STEPS if layout == "app" else step))
            ours.parallel.save_dcp(tmp_path / f"{case}-ours", ours.optimizer, step=5)
            other = Script("ddp" if kind == "ddp" else "fsdp", optimizer, number, seed=9)
            said = other.load(tmp_path / f"{case}-ours") - 3
            found.append((f"{case}, written", ours.losses(STEPS), other.losses(STEPS), said))
        return found

    for result in run_processes(RANKS, run, tmp_path / "meeting"):
        if isinstance(result, Exception):
            raise result
        for case, wanted, losses, step in result:
            assert losses == close(wanted), case
            assert step == STEPS, case
    folder = tmp_path / "fsdp-nested-adamw-ours"
    sizes = [path.stat().st_size for path in folder.glob("__*")]
    assert len(sizes) == RANKS  # each rank wrote its own part
    assert min(sizes) > max(sizes) / 3
