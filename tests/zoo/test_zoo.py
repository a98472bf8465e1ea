"""The zoo: published sizes, and every model at small size trains alike on any strategy."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone import zoo
from soapstone.loading import Request, load_graph
from tests.support.microbatches import counts_of, microbatched, train_accumulating
from tests.support.models import seeded
from tests.support.seeds import cases, seeds
from tests.support.sharding import recomputed, sharded
from tests.support.training import Record, assert_same, train_plain, train_threads


@pytest.mark.parametrize("name", zoo.names())
def test_parameter_counts_are_those_of_the_catalogue(name: str) -> None:
    with torch.device("meta"):
        work = zoo.load(name, batch=1)
    count = sum(p.numel() for p in work.model.parameters())
    assert count == pytest.approx(zoo.entry(name).parameters * 1e6, rel=2e-3)


def test_the_recurrent_models_have_the_papers_sizes() -> None:
    with torch.device("meta"):
        shapes = {n: {tuple(p.shape) for p in zoo.load(n).model.parameters()} for n in ("rnntc", "rnnlm", "nmt")}
    assert (4 * 1024, 1024) in shapes["rnntc"]
    assert (4 * 2048, 2048) in shapes["rnnlm"]
    assert (32_000, 1024) in shapes["nmt"]


SMALL: dict[str, dict[str, Any]] = {
    "lenet": {"batch": 3},
    "alexnet": {"batch": 2, "image": 96, "width": 4, "hidden": 12, "classes": 5},
    "inception-v3": {"batch": 3, "image": 139, "divide": 16, "classes": 5},
    "resnet-101": {"batch": 3, "image": 32, "width": 4, "blocks": (1, 1, 1, 1), "classes": 5},
    "rnntc": {"batch": 3, "vocab": 11, "length": 3, "hidden": 6, "layers": 2},
    "rnnlm": {"batch": 3, "vocab": 11, "length": 3, "hidden": 6},
    "nmt": {"batch": 3, "vocab": 11, "length": 3, "hidden": 6},
    "gpt2": {"batch": 3, "vocab": 17, "length": 6, "width": 8, "heads": 2, "layers": 2},
    "llama": {"batch": 3, "vocab": 17, "length": 6, "width": 16, "heads": 4, "key_heads": 2, "inner": 12, "layers": 2},
    "mixtral": {
        "batch": 3,
        "vocab": 17,
        "length": 6,
        "width": 16,
        "heads": 4,
        "key_heads": 2,
        "inner": 12,
        "experts": 4,
        "layers": 2,
    },
    "dit": {"batch": 3, "image": 8, "channels": 2, "width": 8, "heads": 2, "layers": 1, "classes": 5},
    "vit": {"batch": 3, "image": 16, "patch": 8, "width": 8, "heads": 2, "layers": 2, "classes": 5},
}


@pytest.mark.parametrize("name", cases(SMALL, long=["inception-v3", "resnet-101"]))
def test_a_capture_needs_no_numbers(name: str) -> None:
    batch, sizes = SMALL[name]["batch"], {key: size for key, size in SMALL[name].items() if key != "batch"}
    graph = load_graph(Request(name, batch, sizes, dtype="float64"), fresh=True)
    assert graph.fingerprint == captured(name).fingerprint


def test_a_model_and_its_batch_may_be_larger_than_memory() -> None:
    graph = load_graph(Request("llama", 1, {"width": 2**17, "inner": 2**19, "layers": 1}), fresh=True)
    assert sum(parameter.bytes for parameter in graph.parameters) > 2**39
    graph = load_graph(Request("lenet", 2**32), fresh=True)  # 16 TiB of images
    assert {op.name: op for op in graph.ops}["0.0"].dims[0].size == 2**32


def workload(name: str) -> ss.Workload:
    with seeded(3):
        return zoo.load(name, **SMALL[name]).to("float64")


@cache
def captured(name: str) -> ss.OperatorGraph:
    return ss.capture(workload(name))


@cache
def reference(name: str) -> Record:
    work = workload(name)
    return train_plain(work, [work.batch] * 2)


@pytest.mark.parametrize("name", cases(SMALL, long=["inception-v3"]))
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_zoo_model_trains_like_one_device(name: str, seed: int) -> None:
    graph, topology = captured(name), ss.Topology.parse(f"cpu:1x{2 + seed}")
    chosen = ss.baselines.data_parallel if seed == 0 else None
    strategy = chosen(graph, topology) if chosen else ss.baselines.random(graph, topology, seed=seed)
    for record in train_threads(lambda: workload(name), graph, strategy, [workload(name).batch] * 2):
        assert_same(record, reference(name))


LONG = ["gpt2", "nmt", "vit", "rnnlm"]


@pytest.mark.parametrize("seed", seeds(1, 8))
@pytest.mark.parametrize("name", cases(["llama", "mixtral", "lenet", *LONG], long=LONG))
def test_a_zoo_model_trains_in_microbatches(name: str, seed: int) -> None:
    graph, rng = captured(name), random.Random(f"{name} {seed}")
    topology, count = ss.Topology.parse(f"cpu:1x{rng.choice((2, 3, 4))}"), rng.choice(counts_of(graph))
    strategy = recomputed(sharded(microbatched(graph, topology, count, seed), seed), seed)
    batches = [workload(name).batch] * 2
    wanted = train_accumulating(workload(name), graph, batches, count)
    for record in train_threads(lambda: workload(name), graph, strategy, batches):
        assert_same(record, wanted)


@pytest.mark.parametrize("name", SMALL)
def test_almost_all_flops_can_be_split_in_two_dims(name: str) -> None:
    """Norms and losses, which split in one, weigh more in models this small."""
    graph = captured(name)
    assert graph.unruled == ()
    split = sum(op.flops for op in graph.ops if sum(dim.splittable for dim in op.dims) >= 2)
    assert split >= 0.98 * sum(op.flops for op in graph.ops)


def test_unknown_names_and_sizes_get_a_sentence() -> None:
    with pytest.raises(ss.SoapstoneError, match="the zoo has no 'vgg'; it has lenet"):
        zoo.load("vgg")
    with pytest.raises(ss.SoapstoneError, match="batch=0 is not a number of samples"):
        zoo.load("lenet", batch=0)
    with pytest.raises(ss.SoapstoneError, match="lenet has no size 'depth'; it has image, classes"):
        zoo.load("lenet", depth=3)
    with pytest.raises(ss.SoapstoneError, match="classes=-1 is not a size; give it as 10"):
        zoo.load("lenet", classes=-1)
    with pytest.raises(ss.SoapstoneError, match=r"blocks=4 is not a size; give it as \(3, 4, 23, 3\)"):
        zoo.load("resnet-101", blocks=4)
    with pytest.raises(ss.SoapstoneError, match="rejects LeNet"):
        ss.capture(zoo.load("lenet", image=2))


def test_the_zoo_is_made_of_modules() -> None:
    assert all(isinstance(workload(name).model, nn.Module) for name in SMALL)
    assert {zoo.entry(name).model for name in SMALL} == {zoo.entry(name).model for name in zoo.names()}
