"""Casts under autocast: those of torch's own autocast, op by op; and what the captured graph makes of them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import soapstone as ss
from soapstone.runtime.transports import alone
from soapstone.tracing.autocast import Casts, casting, registered, rules_of
from soapstone.tracing.precision import Autocast
from tests.support.models import seeded
from tests.support.seeds import cases
from tests.support.training import train_plain, train_threads

pytest.importorskip("transformers")
from tests.support import huggingface

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of DeBERTa's

BFLOAT16 = torch.bfloat16
MOVES = ("_to_copy", "clone", "detach", "view", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze")


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The ops that are run, each with the types of its tensors, besides casts and what only moves elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[str, list[torch.dtype], list[torch.dtype]]] = []
        self.casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.casts += func._opname == "_to_copy"
        if func._opname not in MOVES:
            self.ops.append((str(func), _types((args, kwargs)), _types(made)))
        return made


def _types(values: Any) -> list[torch.dtype]:
    return [x.dtype for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def recorded(work: ss.Workload, autocast: AbstractContextManager[Any]) -> tuple[Recorded, float]:
    torch.manual_seed(0)
    with autocast, Recorded() as found:
        loss = work.compute_loss(*work.batch)
    return found, loss.item()


def compare(work: ss.Workload, device: str) -> None:
    """The ops of ours and of torch's own autocast, their types, the number of casts, and the loss."""
    theirs, wanted = recorded(work, torch.autocast(device, BFLOAT16))
    ours, loss = recorded(work, casting(Casts(Autocast(device, BFLOAT16), device)))
    assert ours.ops == theirs.ops
    assert ours.casts == theirs.casts
    assert loss == pytest.approx(wanted, rel=1e-6)  # CUDA adds the losses of images in any order


@pytest.mark.parametrize("name", cases(huggingface.MODELS, long=huggingface.MODELS.keys() - {*huggingface.OFTEN}))
def test_every_op_runs_in_the_type_that_it_has_in_eager_pytorch(name: str) -> None:
    compare(huggingface.workload(name), "cpu")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_lists_have_all_ops_that_torch_has_in_its_own(device: str) -> None:
    torchs = {name.removeprefix("aten::") for name in registered(device) if name.startswith("aten::")}
    assert rules_of(device).known == torchs


class Calls(nn.Module):
    """A model of one weight, which a function uses."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(6, 6)), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def captured(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], precision: str) -> ss.OperatorGraph:
    return ss.capture(Calls(function), (torch.randn(4, 6),), loss=lambda y: y.float().sum(), precision=precision)


def types_of(graph: ss.OperatorGraph, kind: str) -> list[str]:
    """The types that ops of a kind give out, in order."""
    return [op.values[step.outputs[0]].dtype for op in graph.ops for step in op.steps if step.kind == kind]


@pytest.mark.parametrize("precision", ["autocast", "autocast:cpu"])
def test_code_that_reads_a_type_reads_that_of_eager_pytorch(precision: str) -> None:
    def reads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x @ weight
        return (y.float() * 2).to(y.dtype).sqrt()

    assert types_of(captured(reads, precision), "sqrt") == ["bfloat16"]


@pytest.mark.parametrize("precision", ["autocast", "autocast:cpu"])
def test_a_region_switches_autocast_off_and_no_grad_may_stand_inside(precision: str) -> None:
    """As rotary embeddings of transformers do, which name the type of the device that the model lies on."""

    def turns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            assert not torch.is_autocast_enabled("cpu")
            angle = torch.arange(4.0)[:, None] @ torch.ones(1, 6) + x.detach() @ x.new_ones(6, 6)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == BFLOAT16
        return (x @ weight) * angle.cos()

    graph = captured(turns, precision)
    assert types_of(graph, "cos") == ["float32"]
    assert types_of(graph, "matmul") == ["float32", "bfloat16"]
    assert [t.name for t in graph.tensors if t.source == "parameter" and t.grad] == ["weight"]


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], str, str]] = {
    # what is called, an op in it, and its type under CUDA's rules
    "a method": (lambda x, w: (x @ w).softmax(-1), "softmax", "float32"),
    "a quotient": (lambda x, w: 1 / (x @ w), "reciprocal", "float32"),
    "a power": (lambda x, w: 2 ** (x @ w), "pow", "float32"),
    "a norm": (lambda x, w: F.normalize(x @ w), "linalg_vector_norm", "float32"),
    "by keyword": (lambda x, w: torch.matmul(input=x, other=w), "matmul", "bfloat16"),
    "an op": (lambda x, w: torch.ops.aten.mm(x, w), "mm", "bfloat16"),
    "an overload": (lambda x, w: torch.ops.aten.mm.default(x, w), "mm", "bfloat16"),
    "the widest type": (lambda x, w: torch.addcmul(x, x @ w, x), "addcmul", "float32"),
    "scripted": (lambda x, w: scripted(x @ w), "exp", "float32"),
    "no list has it": (lambda x, w: torch.relu(x @ w), "relu", "bfloat16"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_written_in_other_ways_is_cast_too(name: str) -> None:
    function, kind, wanted = FUNCTIONS[name]
    assert types_of(captured(function, "autocast"), kind) == [wanted]


PLACES = torch.arange(4)


def by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    torch.set_autocast_enabled("cpu", True)
    return x @ w


CROSS_ENTROPIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    # the types of each sample's loss, and of the mean
    "of indices": ({}, ["bfloat16", "float32"]),
    "summed": ({"reduction": "sum"}, ["bfloat16", "float32"]),
    "smoothed": ({"label_smoothing": 0.1}, ["float32", "float32"]),
}


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_a_cross_entropys_logarithms_have_the_type_of_the_logits(name: str) -> None:
    given, wanted = CROSS_ENTROPIES[name]
    work = ss.Workload(nn.Linear(6, 5), (torch.randn(4, 6),), loss=lambda y: F.cross_entropy(y, PLACES, **given))
    graph = ss.capture(work, precision="autocast")
    assert [*types_of(graph, "class_loss"), *types_of(graph, "class_mean")] == wanted


@pytest.mark.parametrize("given", [{}, {"ignore_index": 2}, {"label_smoothing": 0.1}])
def test_a_cross_entropy_may_be_called_as_an_op(given: dict[str, Any]) -> None:
    def graph(loss: Callable[..., torch.Tensor]) -> ss.OperatorGraph:
        work = ss.Workload(nn.Linear(6, 5), (torch.randn(4, 6),), loss=lambda y: loss(y, PLACES, **given))
        return ss.capture(work, precision="autocast")

    assert graph(torch.ops.aten.cross_entropy_loss).fingerprint == graph(F.cross_entropy).fingerprint


REFUSED: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], str]] = {
    "inside an op": (lambda x, w: F.pairwise_distance(x @ w, x @ w + 1), "would cast .*norm inside aten.pairwise_dist"),
    "switched by hand": (by_hand, "forward calls torch.set_autocast_enabled .*; use torch.autocast instead"),
    "refused by torch": (
        lambda x, w: F.binary_cross_entropy((x @ w).sigmoid(), torch.ones(4, 6)),
        "torch refuses binary_cross_entropy under autocast .*; use binary_cross_entropy_with_logits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_casts_that_cannot_be_followed_are_refused(name: str) -> None:
    function, sentence = REFUSED[name]
    with pytest.raises(ss.SoapstoneError, match=sentence):
        captured(function, "autocast")


ALIKE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "outer product": lambda x, w: torch.einsum("i,j->ij", torch.arange(4.0), torch.arange(6.0) / 7).cos() * (x @ w),
    "elementwise": lambda x, w: torch.einsum("bi,bi->bi", x, x @ w),
    "no sum": lambda x, w: torch.einsum("bi,ij->bij", x, w),
    "one tensor": lambda x, w: torch.einsum("ij->ji", x @ w),
    "a product": lambda x, w: torch.einsum("bi,ij->bj", x, w),
    "implicit": lambda x, w: torch.einsum("bi, ij", x, w),
    "likelihoods": lambda x, w: F.nll_loss(F.log_softmax(x @ w, -1), PLACES)[None],
    "stacked": lambda x, w: torch.hstack([x, x @ w]),
    "concat": lambda x, w: torch.concat([x, x @ w]),
    "linalg": lambda x, w: torch.linalg.matmul(x, w),
    "each row": lambda x, w: torch.func.vmap(lambda row: row @ w)(x),
}


@pytest.mark.parametrize("name", ALIKE)
def test_the_loss_is_that_of_torchs_own_autocast(name: str) -> None:
    with seeded(4):
        model, x = Calls(ALIKE[name]), torch.randn(4, 6)
    work = ss.Workload(model, (x,), loss=lambda y: y.float().square().mean())
    graph, topology = ss.capture(work, precision="autocast:cpu"), ss.Topology.parse("cpu:1x1")
    strategy = ss.baselines.data_parallel(graph, topology)
    loss = ss.parallelize(work, graph, topology, strategy, transport=alone()).step(x)
    with torch.autocast("cpu", BFLOAT16):
        assert torch.allclose(loss, work.compute_loss(x), rtol=1e-6)


def region(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def asks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", BFLOAT16):
            return (x @ w) * (2 if torch.is_autocast_enabled("cuda") else 1)

    def another_is_off(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", BFLOAT16), torch.autocast("cuda", enabled=False):
            return x @ w

    return {"asks": asks, "another is off": another_is_off}[name]


@pytest.mark.parametrize("name", ["asks", "another is off"])
def test_regions_of_one_device_type_do_not_change_those_of_another(name: str) -> None:
    graph = ss.capture(Calls(region(name)), (torch.randn(4, 6),), loss=lambda y: y.float().sum())
    assert types_of(graph, "matmul") == ["bfloat16"]
    assert types_of(graph, "mul") == ["bfloat16"] * (name == "asks") or name == "another is off"


def test_a_weight_is_cast_once_in_a_region() -> None:
    weight = torch.randn(6, 6, requires_grad=True)
    with casting(Casts(None, "cpu")), Recorded() as found:
        for _ in range(2):
            with torch.autocast("cpu", BFLOAT16):
                y = weight @ weight @ weight
    assert (found.casts, y.dtype) == (2, BFLOAT16)


def test_other_threads_keep_their_own_autocast() -> None:
    found: list[torch.dtype] = []

    def other() -> None:
        x = torch.ones(2, 2)
        found.append((x @ x).dtype)
        with torch.autocast("cpu", BFLOAT16):
            found.append((x @ x).dtype)

    with casting(Casts(Autocast("cpu", BFLOAT16), "cpu")):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [torch.float32, BFLOAT16]


TRAINED = [name for name in huggingface.MODELS if name != "wav2vec2"]  # which is refused for another reason
SHORT = {"bert", "llama", "convnext"}


def still(name: str) -> ss.Workload:
    return huggingface.still(huggingface.workload(name))


@pytest.mark.parametrize("name", cases(TRAINED, long=set(TRAINED) - SHORT))
def test_hugging_faces_models_train_as_under_torchs_own_autocast(name: str) -> None:
    work = still(name)
    with torch.autocast("cpu", BFLOAT16):
        wanted = train_plain(work, [work.batch])
    graph = ss.capture(still(name), precision="autocast:cpu")
    strategy = ss.baselines.data_parallel(graph, ss.Topology.parse("cpu:1x2"))
    for found in train_threads(lambda: still(name), graph, strategy, [work.batch]):
        assert torch.allclose(found.losses[0], wanted.losses[0], rtol=1e-5)
        error, size = 0.0, 0.0
        for parameter, gradient in wanted.gradients[0].items():
            error += float((found.gradients[0][parameter] - gradient).norm() ** 2)
            size += float(gradient.norm() ** 2)
        assert error < 1e-4 * size  # of single numbers, bfloat16 keeps two or three digits


@pytest.mark.parametrize("name", cases(TRAINED, long=set(TRAINED) - SHORT))
def test_hugging_faces_models_are_captured_by_cudas_rules_without_cuda(name: str) -> None:
    graph = ss.capture(huggingface.workload(name), precision="autocast")
    products = {kind for name in ("linear", "addmm", "matmul", "convolution") for kind in types_of(graph, name)}
    assert "bfloat16" in products
