"""Folders of torch.distributed.checkpoint: what FSDP2, DDP and plain scripts write is gone on with here, and the other
way round, with the losses of a run without a break."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import soapstone as ss
from soapstone.cli import main
from soapstone.runtime import Parallel
from tests.docs.blocks import called

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
            for layer in self.model.layers:
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
        layouts: dict[str, Callable[[], dict[str, Any]]] = {
            "nested": lambda: {"model": state, "optim": kept, "step": STEPS},
            "app": lambda: {"app": {"model": state, "optim": kept}},
            "titan": lambda: {
                **state,
                "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=flat),
                "train_state": {"step": torch.tensor(STEPS)},
            },
            "raw": lambda: {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()},
        }
        save(layouts[layout](), checkpoint_id=folder, no_dist=self.is_alone)

    def load(self, folder: Path) -> int:
        state, kept = get_state_dict(self.model, self.optimizer)
        saved: dict[str, Any] = {"model": state, "optim": kept, "step": -1}
        load(saved, checkpoint_id=folder, no_dist=self.is_alone)
        set_state_dict(self.model, self.optimizer, model_state_dict=state, optim_state_dict=saved["optim"])
        return int(saved["step"])


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


def alone(folder: Path, optimizer: str | None = "adamw", number: int = 2, **options: Any) -> tuple[int, list[float]]:
    """The step that is loaded, and losses from there, on one rank."""

    def act(rank: int, transport: Any) -> tuple[int, list[float]]:
        ours = Ours("data", optimizer or "adamw", number, 1, transport)
        step = ours.parallel.load(folder, ours.optimizer if optimizer else None, **options)
        return step, ours.losses(STEPS if optimizer else 1)

    return ss.run_threads(1, act)[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """What a plain script wrote, and how it goes on."""
    folder, script = tmp_path_factory.mktemp("plain") / "dcp", Script("plain", "adamw", 2)
    script.losses(STEPS)
    script.save(folder)
    return folder, script.losses(STEPS)


def copied(saved: tuple[Path, list[float]], folder: Path) -> Path:
    shutil.copytree(saved[0], folder)
    return folder


def test_a_plain_scripts_numbered_optimizer_is_refused_and_its_weights_are_read(tmp_path: Path) -> None:
    script = Script("plain", "adamw", 2)
    script.losses(STEPS)
    script.save(tmp_path / "raw", "raw")
    with pytest.raises(ss.SoapstoneError, match="numbers the parameters in its optimizer's state"):
        alone(tmp_path / "raw")
    assert alone(tmp_path / "raw", None) == (0, close(script.losses(1)))


def test_the_model_of_a_module_in_ddp_is_found(tmp_path: Path) -> None:
    script = Script("plain", "adamw", 1)
    state = {f"module.{name}": values for name, values in script.model.state_dict().items()}
    save({"net": state, "rng": torch.get_rng_state()}, checkpoint_id=tmp_path / "ddp", no_dist=True)
    assert alone(tmp_path / "ddp", None) == (0, close(script.losses(1)))


def test_a_checkpoint_becomes_a_folder_without_ranks(tmp_path: Path) -> None:
    def act(rank: int, transport: Any) -> list[float]:
        ours = Ours("fsdp", "adamw", 1, 2, transport)
        ours.losses(STEPS)
        ours.parallel.save(tmp_path / "saved", ours.optimizer, step=STEPS)
        return ours.losses(STEPS)

    wanted = ss.run_threads(2, act)[0]
    said = called(main, ["soapstone", "export-dcp", str(tmp_path / "saved"), "-o", str(tmp_path / "dcp")])
    assert "9 tensors of the model" in said
    script = Script("plain", "adamw", 1, seed=9)
    assert script.load(tmp_path / "dcp") == STEPS
    assert script.losses(STEPS) == close(wanted)
    assert alone(tmp_path / "dcp", number=1) == (STEPS, close(wanted))
    with pytest.raises(AssertionError, match="exists already; name another folder"):
        called(main, ["soapstone", "export-dcp", str(tmp_path / "saved"), "-o", str(tmp_path / "dcp")])
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "dcp"}


def test_numbers_of_another_type_are_converted_if_wanted(tmp_path: Path) -> None:
    script = Script("plain", "adamw", 2)
    script.model.float()
    script.losses(STEPS)
    script.save(tmp_path / "dcp")
    with pytest.raises(ss.SoapstoneError, match=r"float32 in the checkpoint, but float64 .* \(convert=True\) converts"):
        alone(tmp_path / "dcp")
    _, losses = alone(tmp_path / "dcp", convert=True)
    assert losses == pytest.approx(script.losses(STEPS), rel=1e-5)


class Hostile:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("hostile",)


def gap(metadata: Metadata) -> None:
    chunk = metadata.state_dict_metadata["model.embed.weight"].chunks[0]  # type: ignore[union-attr]
    chunk.sizes = torch.Size([10, 5])


def overlap(metadata: Metadata) -> None:
    chunks = metadata.state_dict_metadata["model.embed.weight"].chunks  # type: ignore[union-attr]
    chunks.append(ChunkStorageMetadata(torch.Size([1, 0]), torch.Size([2, 5])))
    index = MetadataIndex("model.embed.weight", torch.Size([1, 0]))
    metadata.storage_data[index] = metadata.storage_data[MetadataIndex("model.embed.weight", torch.Size([0, 0]))]


def without(key: str) -> Callable[[Metadata], Any]:
    return lambda metadata: metadata.state_dict_metadata.pop(key)


def moved(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("model.norm.bias", torch.Size([0]))].offset += 64


def elsewhere(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("model.norm.bias", torch.Size([0]))].relative_path = "../dcp/__0_0.distcp"


def swapped(metadata: Metadata) -> None:
    one, two = (MetadataIndex(f"model.{name}", torch.Size([0, 0])) for name in ("layers.0.weight", "embed.weight"))
    storage = metadata.storage_data
    storage[one], storage[two] = storage[two], storage[one]


def hostile(metadata: Metadata) -> None:
    metadata.planner_data = Hostile()


def extra(metadata: Metadata) -> None:
    metadata.state_dict_metadata["model.other.weight"] = metadata.state_dict_metadata["model.embed.weight"]
    index = MetadataIndex("model.other.weight", torch.Size([0, 0]))
    metadata.storage_data[index] = metadata.storage_data[MetadataIndex("model.embed.weight", torch.Size([0, 0]))]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (gap, "has only a part of 'model.embed.weight'"),
        (overlap, "boxes of one tensor overlap"),
        (without("model.norm.bias"), r"has no 'norm.bias', which the model has; its keys are model.*, .* more"),
        (extra, "has 'model.other.weight', which the model does not have"),
        (without("optim.state.norm.bias.exp_avg"), "does not have 'exp_avg' of 'norm.bias'"),
        (without("optim.state.norm.bias.step"), "does not have 'step' of 'norm.bias'"),
        (without("optim.param_groups.0.betas"), "saved with another optimizer than AdamW: only one .* 'betas'"),
        (without("optim.param_groups.1.params"), "numbers the parameters|parameter group"),
        (moved, "a part of it is damaged"),
        (swapped, "another type or shape|is not in"),
        (elsewhere, "is not the name of a file beside it"),
        (hostile, "it names 'posix.mkdir', which is not part of a checkpoint's metadata"),
    ],
)
def test_damaged_metadata_is_refused_in_a_sentence(
    damage: Callable[[Metadata], Any], sentence: str, saved: tuple[Path, list[float]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    path = copied(saved, tmp_path / "dcp") / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    damage(metadata)
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ss.SoapstoneError, match=sentence) as refused:
        alone(tmp_path / "dcp")
    assert "\n" not in str(refused.value)
    assert not Path("hostile").exists()


@pytest.mark.parametrize(
    ("optimizer", "number", "sentence"),
    [
        ("momentum", 2, "saved with another optimizer than SGD: only one of them has 'amsgrad'"),
        ("adamw", 1, "has 2 parameter groups, but this one has 1"),
    ],
)
def test_another_optimizer_is_refused(
    optimizer: str, number: int, sentence: str, saved: tuple[Path, list[float]]
) -> None:
    with pytest.raises(ss.SoapstoneError, match=sentence):
        alone(saved[0], optimizer, number)


def test_hostile_values_and_files_are_refused(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    folder = copied(saved, tmp_path / "dcp")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    place = metadata.storage_data[MetadataIndex("optim.param_groups.0.lr")]
    place.relative_path, place.offset = "other", 0
    torch.save(Hostile(), folder / "other")
    place.length = (folder / "other").stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ss.SoapstoneError, match="other: a part of it is damaged") as refused:
        alone(folder)
    assert "\n" not in str(refused.value)
    (folder / "other").unlink()
    os.mkfifo(folder / "other")
    with pytest.raises(ss.SoapstoneError, match="not a plain file"):
        alone(folder)


def test_no_flipped_bit_is_silent_or_ends_in_a_traceback(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    folder = copied(saved, tmp_path / "dcp")
    rng, refused = random.Random(0), 0
    for path in (folder / ".metadata", folder / "__0_0.distcp"):
        data = path.read_bytes()
        for _ in range(60):
            place = rng.randrange(len(data))
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :])
            said = ""
            try:
                assert alone(folder) == (STEPS, close(saved[1]))
            except ss.SoapstoneError as error:
                said = str(error)
            assert "\n" not in said
            refused += bool(said)
        path.write_bytes(data)
    assert refused > 60
