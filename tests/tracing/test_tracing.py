"""Capture: which ops, dims, kinds, names and layers come out; what cannot be captured says why."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import soapstone as ss
from soapstone.simulator import FORWARD
from soapstone.tracing import capture_output
from tests.support.models import CASES

LINEAR = nn.Linear(4, 2)
X = torch.randn(3, 4)


def described(graph: ss.OperatorGraph) -> dict[str, str]:
    return {op.name: " ".join(f"{dim}:{dim.kind[0]}" for dim in op.dims) for op in graph.ops}


def test_the_mlp() -> None:
    graph = ss.capture(CASES["mlp"].workload())
    assert described(graph) == {
        "first": "sample=6:s channel=11:p {in}=7:r",
        "second": "sample=6:s channel=9:p {in}=11:r",
        "last": "sample=6:s channel=5:p {in}=9:r",
        "mse_loss": "{sample}=6:s {channel}=5:r",
    }
    assert [s.kind for s in graph.op("first").steps] == ["linear", "relu"]
    assert graph.op("first").flops == 2 * 6 * 11 * 7 + 6 * 11


def test_the_cnn() -> None:
    graph = ss.capture(CASES["cnn"].workload())
    assert described(graph) == {
        "stem": "sample=5:s channel=6:p height=8:a width=8:a",
        "norm": "{sample}=5:s channel=6:p {height}=8:a {width}=8:a",
        "branch": "sample=5:s group=2:p channel=3:p height=8:a width=8:a",
        "side": "sample=5:s channel=4:p height=8:a width=8:a",
        "pool": "sample=5:s channel=10:a height=4:a width=4:a",
        "mean": "sample=5:s channel=10:a height=2:a width=2:a",
        "head": "sample=5:s channel=5:p {in}=40:r",
        "cross_entropy": "sample=5:s {class}=5:r",
        "loss_mean": "{sample}=5:s",
    }
    assert [s.kind for s in graph.op("norm").steps][1:] == ["relu"]
    assert [s.kind for s in graph.op("branch").steps] == ["conv2d", "add"]
    assert [s.kind for s in graph.op("pool").steps] == ["cat", "max_pool2d"]
    assert [s.kind for s in graph.op("mean").steps] == ["avg_pool2d", "view", "native_dropout"]
    assert graph.counters == ("norm.num_batches_tracked",)
    assert graph.op("stem").flops == 2 * 5 * 6 * 8 * 8 * 3 * 3 * 3
    assert graph.unruled == ()


def test_the_lstm() -> None:
    graph = ss.capture(CASES["lstm"].workload())
    names = described(graph)
    assert names["embed"] == "sample=5:s length=3:a channel=6:p {vocab}=11:p"
    assert names["lower"] == names["upper_3"] == "sample=5:s hidden=6:p"
    assert names["project"] == "sample=5:s channel=11:p length=3:a {in}=6:r"
    assert graph.aliases == {"project.weight": "embed.weight"}
    layers = {op.name: op.layer for op in graph.ops}
    assert layers["lower"] == layers["lower_2"] == layers["lower_3"] == "lower"
    assert layers["upper_2"] == "upper"
    assert layers["project"] == layers["embed"] == "embed"
    assert sorted(graph.op("lower").parameters) == [f"lower.{n}_{m}" for n in ("bias", "weight") for m in ("hh", "ih")]


def test_capture_is_the_same_each_time() -> None:
    first, second = (ss.capture(CASES["cnn"].workload()) for _ in range(2))
    assert first == second
    assert first.fingerprint == second.fingerprint != ss.capture(CASES["mlp"].workload()).fingerprint


class Heads(nn.Module):
    """A projection that is viewed as heads: the linear itself splits by head."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(6, 12), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.project(x).view(x.shape[0], 5, 3, 4).transpose(1, 2))
        return y


def test_views_refine_the_op_behind_which_they_stand() -> None:
    graph = ss.capture(Heads(), (torch.randn(2, 5, 6),), loss=lambda y: y.sum())
    op = graph.op("project")
    assert [s.kind for s in op.steps] == ["linear", "view", "transpose"]
    assert [(d.size, d.kind, d.splittable) for d in op.dims] == [
        (2, "sample", True),
        (3, "parameter", True),
        (5, "attribute", True),
        (4, "parameter", True),
        (6, "reduction", True),
    ]


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


def test_a_dim_that_is_needed_whole_cannot_be_split() -> None:
    graph = ss.capture(Normalised(), (torch.randn(3, 4),), loss=lambda y: (y * y).sum())
    assert [s.kind for s in graph.op("linear").steps][:2] == ["linear", "softmax"]
    assert [(d.name, d.splittable) for d in graph.op("linear").dims] == [
        ("sample", True),
        ("channel", False),
        ("in", True),
    ]


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.live = nn.Linear(4, 4), nn.Linear(4, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.live(self.frozen(x) * self.scale)
        return y


def test_frozen_parameters_have_no_backward() -> None:
    graph = ss.capture(Frozen(), (torch.randn(3, 4),), loss=lambda y: y.mean())
    assert not graph.op("frozen").backward
    assert graph.op("live").backward
    topology = ss.Topology.parse("cpu:1x2")
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    frozen = graph.index("frozen")
    assert {int(k) for k in sim.tasks["kind"][sim.tasks["op"] == frozen]} == {0}


def test_an_op_without_a_rule_stays_whole_and_is_named() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.logcumsumexp(self.linear(x), 0)
            return y

    graph = ss.capture(Sorted(), (torch.randn(3, 4),), loss=lambda y: (y * y).mean())
    assert graph.unruled == ("logcumsumexp",)
    assert not any(dim.splittable for dim in graph.op("logcumsumexp").dims)


class Odd(nn.Module):
    """One linear layer, and something unusual done with its result."""

    def __init__(self, act: Callable[[Any, torch.Tensor], torch.Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = act
        for name, module in modules.items():
            setattr(self, name, module)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self, self.linear(x))


def odd(act: Callable[[Any, torch.Tensor], torch.Tensor], **modules: nn.Module) -> ss.OperatorGraph:
    return ss.capture(Odd(act, **modules), (torch.randn(3, 4),), loss=lambda y: (y * y).sum())


COMPOSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    # what torch composes of other ops, and one of these
    "another name": (torch.negative, "neg"),
    "a special function": (lambda x: torch.special.softmax(x, -1), "softmax"),
    "of several": (lambda x: torch.inner(x, x), "mm"),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_an_op_that_is_composed_of_others_is_captured_as_these(name: str) -> None:
    function, kind = COMPOSED[name]
    graph = ss.capture(nn.Linear(6, 6), (torch.randn(4, 6),), loss=lambda y: function(y).sum())
    assert kind in {step.kind for op in graph.ops for step in op.steps}
    assert not graph.unruled


def test_what_no_grad_makes_is_not_trained() -> None:
    def act(self: Any, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            frozen = self.back(y)
        result: torch.Tensor = self.head(frozen)
        return result

    graph = odd(act, back=nn.Linear(4, 4), head=nn.Linear(4, 2))
    assert {t.name for t in graph.parameters if t.grad} == {"head.weight", "head.bias"}


def test_an_assignment_to_a_slice_is_captured() -> None:
    def act(self: Any, y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        z[:2] += 1
        return z

    assert "copy" not in odd(act).unruled


def test_dropout_of_a_constant_draws_in_each_step() -> None:
    graph = odd(lambda self, y: y * F.dropout(torch.ones(3, 4), 0.5))
    assert [draw.shape for draw in graph.draws] == [(3, 4)]
    assert any("draw" in step.args for op in graph.ops for step in op.steps)


def _count(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.count += 1
    z: torch.Tensor = y / self.count
    return z


UNUSUAL: dict[str, tuple[Callable[[], object], str]] = {
    "noise": (lambda: odd(lambda self, y: y + torch.randn(3, 4)), "randn in the model draws random numbers"),
    "dropout2d": (lambda: odd(lambda self, y: self.d(y[None, :, :, None]), d=nn.Dropout2d()), "draws random numbers"),
    "noisy relu": (lambda: odd(lambda self, y: F.rrelu(y, training=True)), "draws random numbers"),
    "a counter that is read": (lambda: odd(_count), "'count'"),
    "statistics read elsewhere": (
        lambda: odd(lambda self, y: self.bn(y) - self.bn.running_mean, bn=nn.BatchNorm1d(4)),
        "changes in each step, but is also read elsewhere|used, but has no rule",
    ),
    "batch norm twice": (lambda: odd(lambda self, y: self.bn(self.bn(y)), bn=nn.BatchNorm1d(4)), "only once in a step"),
    "batch norm for nothing": (lambda: odd(lambda self, y: (self.bn(y), y)[1], bn=nn.BatchNorm1d(4)), "is not used"),
    "no samples": (
        lambda: ss.capture(nn.Linear(4, 2), (torch.randn(0, 4),), loss=lambda y: y.sum()),
        r"of shape \[0, 4\] has no elements",
    ),
    "batch dim": (lambda: ss.capture(LINEAR, (X,), batch_dim=-1), "batch_dim=-1 is not an axis"),
    "chunk": (lambda: ss.capture(LINEAR, (X,), chunk=0), "chunk=0 is not a number of time steps"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_would_differ_between_strategies_is_refused(name: str) -> None:
    act, message = UNUSUAL[name]
    with pytest.raises(ss.SoapstoneError, match=message):
        act()


def test_gradients_scaled_by_frequency_stay_whole() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Linear(3, 2))
    graph = ss.capture(model, (torch.randint(0, 5, (4, 2)),), loss=lambda y: y.sum())
    assert graph.unruled == ("embedding",)


def test_a_recurrent_layer_is_unrolled_in_chunks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.lstm(x)[0]
            return y

    x = torch.randn(6, 3, 4)
    single = ss.capture(Net(), (x,), loss=lambda y: y.mean(), batch_dim=1)
    assert [op.kind for op in single.ops].count("lstm_cell") == 12
    assert {op.layer for op in single.ops if op.kind == "lstm_cell"} == {"lstm", "lstm_7"}
    chunked = ss.capture(Net(), (x,), loss=lambda y: y.mean(), batch_dim=1, chunk=3)
    assert [op.kind for op in chunked.ops].count("lstm") == 4
    assert single.ops[0].dims[0].kind == "sample"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y if y.sum() > 0 else -y


BAD: dict[str, tuple[Any, str]] = {
    "control flow": (
        lambda: ss.capture(Branching(), (X,), loss=lambda y: y.sum()),
        r"depends on numbers in a tensor \(.*line \d+: return y if y.sum\(\) > 0",
    ),
    "no scalar": (lambda: ss.capture(LINEAR, (X,)), r"must be a scalar tensor, not torch.float32 of shape \[3, 2\]"),
    "integer": (
        lambda: ss.capture(LINEAR, (X,), loss=lambda y: y.argmax()),
        "must be a scalar tensor, not torch.int64",
    ),
    "several": (lambda: ss.capture(LINEAR, (X,), loss=lambda y: (y.sum(), y.mean())), "must be one scalar tensor"),  # type: ignore[arg-type, return-value]
    "no gradient": (lambda: ss.capture(LINEAR, (X,), loss=lambda y: y.detach().sum()), "no trainable parameter"),
    "no model": (lambda: ss.capture(len, (X,)), "must be an nn.Module, not builtin_function_or_method"),  # type: ignore[arg-type]
    "no tensor": (lambda: ss.capture(LINEAR, (3,)), r"inputs\[0\] must be a tensor, or hold some, not int"),  # type: ignore[arg-type]
    "targets alone": (lambda: ss.capture(LINEAR, (X,), targets=(X,)), "no loss that takes them"),
    "shapes": (lambda: ss.capture(LINEAR, (torch.randn(3, 5),), loss=lambda y: y.sum()), "torch.export rejects Linear"),
    "no elements": (
        lambda: ss.capture(LINEAR, (X,), loss=lambda y: y[:, :0].reshape(-1).sum() + y.sum()),
        r"of shape \[3, 0\] has no elements; capture with at least one",
    ),
    "batch norm": (lambda: ss.capture(LINEAR, (X,), batch_norm="none"), "batch_norm='none' is not known"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_captured_gets_a_sentence(name: str) -> None:
    act, message = BAD[name]
    with pytest.raises(ss.SoapstoneError, match=message):
        act()


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.first(x).relu()
        z: torch.Tensor = self.last(y.float())
        return z


def test_an_autocast_region_casts_inside_its_ops() -> None:
    graph = ss.capture(Autocast(), (torch.randn(4, 6),), loss=torch.sum)
    assert [op.name for op in graph.ops] == ["first", "last", "sum"]
    assert set(graph.op("first").parameters) == {"first.weight", "first.bias"}
    assert {graph.tensors[o.tensor].dtype for o in graph.op("first").outputs} == {"float32"}
    assert "bfloat16" in {value.dtype for value in graph.op("first").values}


def test_autocast_around_capture_is_autocast_inside_the_model() -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        graph = ss.capture(model, (x,), loss=torch.sum)
        assert torch.is_autocast_enabled("cpu")
    assert graph.tensors[graph.op("0").outputs[0].tensor].dtype == "bfloat16"
    assert ss.capture(model, (x,), loss=torch.sum).fingerprint != graph.fingerprint


class Mixed(nn.Module):
    """Ops that CUDA's autocast treats unlike the CPU's, constants of all kinds, and a tied weight."""

    def __init__(self, region: str = "") -> None:
        super().__init__()
        self.region = region
        self.first, self.rnn, self.norm = nn.Linear(6, 6), nn.LSTM(6, 6), nn.LayerNorm(6)
        self.last = nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.arange(6.0))
        self.plain = torch.tensor([2.0, 3, 4, 5, 6, 7])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.region, torch.bfloat16) if self.region else nullcontext():
            y = self.rnn(self.first(x)[None])[0][0]
            y = self.norm(y) * self.scale * self.plain + torch.arange(6, device=x.device)
            return torch.softmax(self.last(y) * torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device), -1)


def dtypes(graph: ss.OperatorGraph) -> dict[str, str]:
    """The type that the head of each op gives out."""
    return {op.name: op.values[op.steps[op.head].outputs[0]].dtype for op in graph.ops}


def test_autocast_of_a_device_that_is_not_here_follows_that_devices_rules() -> None:
    x = torch.randn(4, 6)
    cuda = ss.capture(Mixed(), (x,), loss=torch.sum, precision="autocast")
    assert cuda.settings.precision == "autocast:cuda"
    found = dtypes(cuda)
    assert (found["first"], found["norm"], found["last"]) == ("bfloat16", "float32", "bfloat16")
    cpu = dtypes(ss.capture(Mixed(), (x,), loss=torch.sum, precision="autocast:cpu"))
    assert cpu["first"] == "bfloat16"
    assert {t.name for t in cuda.tensors if t.grad} >= {"first.weight", "norm.weight"}
    plain = ss.capture(Mixed(), (x,), loss=torch.sum)
    assert cuda.aliases == plain.aliases == {"last.weight": "first.weight"}
    kept = {t.data for t in plain.tensors if t.source == "constant"}
    assert {t.data for t in cuda.tensors if t.source == "constant"} == kept


def test_a_region_of_another_device_inside_forward_is_taken_over() -> None:
    found = ss.capture(Mixed("cuda"), (torch.randn(4, 6),), loss=torch.sum)
    assert dtypes(found)["first"] == "bfloat16"
    assert dtypes(found)["norm"] == "float32"


def test_autocast_is_part_of_evaluation() -> None:
    work = ss.Workload(Mixed(), (torch.randn(4, 6),), loss=torch.sum)
    graph = ss.capture(work, precision="autocast:cpu")
    assert dtypes(capture_output(work, graph))["first"] == "bfloat16"


class Spread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.first(x))
        return y


@pytest.mark.parametrize(
    ("model", "precision", "wanted"),
    [
        (Mixed(), "float16", "in the types that it has; convert it before: model.to.torch.float16"),
        (Mixed(), "float8", "precision='float8' is not known"),
        (Spread(), "", "'first.weight' on cpu and 'last.weight' on meta|'first.bias' on cpu and 'last.bias' on meta"),
    ],
)
def test_what_cannot_be_cast_or_lies_in_several_places_is_refused(
    model: nn.Module, precision: str, wanted: str
) -> None:
    with pytest.raises(ss.SoapstoneError, match=wanted):
        ss.capture(model, (torch.randn(4, 6),), loss=torch.sum, precision=precision)


class LengthFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(9, 4), nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.rnn(self.embed(tokens))[0][-1]) * scale
        return y


def test_each_input_has_its_own_batch_dim() -> None:
    tokens, scale, targets = torch.randint(0, 9, (5, 3)), torch.ones(2), torch.randint(0, 2, (3,))
    work = ss.Workload(LengthFirst(), (tokens, scale), loss=F.cross_entropy, targets=(targets,))
    graph = ss.capture(work, batch_dim=(1, None, 0))
    for op in graph.ops:
        for dim in op.dims:
            assert (dim.kind == "sample") == (dim.size == 3), op
    assert ss.capture(work, batch_dim=[1, None, 0]).fingerprint == graph.fingerprint
    assert graph.settings.batch_dims == (1, None, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1, "batch_dim=-1 is not an axis"),
        ("0", "batch_dim='0' is not an axis"),
        ((0,), "has 1 items for 3 tensors"),
        ((0, 1, 0), r"a tensor of shape \[2\] has no axis 1"),
        ((0, True, 0), "has no axis True"),
    ],
)
def test_a_batch_dim_that_is_none_gets_a_sentence(given: Any, message: str) -> None:
    work = ss.Workload(
        LengthFirst(),
        (torch.randint(0, 9, (5, 3)), torch.ones(2)),
        loss=F.cross_entropy,
        targets=(torch.randint(0, 2, (3,)),),
    )
    with pytest.raises(ss.SoapstoneError, match=message):
        ss.capture(work, batch_dim=given)


def test_a_joint_that_several_ops_read_whole_is_made_once() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
            self.up, self.down = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both = torch.cat([self.left(x), self.right(x)], 1)
            y: torch.Tensor = self.up(both) + self.down(both)
            return y

    graph = ss.capture(Whole(), (torch.randn(5, 4),), loss=torch.sum)
    joint = next(op for op in graph.ops if op.kind == "cat")
    assert len(joint.inputs) == 2
    assert [sum(i.tensor == joint.outputs[0].tensor for i in op.inputs) for op in graph.ops].count(1) == 2


def test_a_joint_that_is_taken_apart_again_makes_no_op_wait() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
            self.up, self.down = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both = torch.stack([self.left(x), self.right(x)], 1)
            y: torch.Tensor = self.up(both[:, 0]) + self.down(both[:, 1])
            return y

    graph = ss.capture(Apart(), (torch.randn(5, 4),), loss=torch.sum)
    assert "stack" not in [op.kind for op in graph.ops]
    topology = ss.Topology.parse("cpu:1x1")
    sim = ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology))
    ops = [graph.ops[task["op"]].name for task in sim.tasks]
    up = next(row for row, task in enumerate(sim.tasks) if ops[row] == "up" and task["kind"] == FORWARD)
    assert [ops[row] for row in sim.predecessors(up)] == ["left"]


@pytest.mark.parametrize("draw", [random.random, lambda: float(numpy.random.rand())])
def test_random_numbers_that_torch_does_not_see_are_refused(draw: Callable[[], float]) -> None:
    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * draw()

    with pytest.raises(ss.SoapstoneError, match=r"random numbers of (Python|numpy)'s, which every step would have"):
        ss.capture(Scaled(4, 4), (torch.randn(2, 4),), loss=torch.sum)
