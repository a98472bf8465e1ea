"""Hold a strategy against one device: the losses, gradients and weights of a few steps.

How far they may part depends on the types. Two runs in one type, summed in different orders, lie about as far from one
another as each lies from the same steps in a wider type. So where the usual tolerance is not met, the model runs on one
device twice more, as it is and in the wider type, and each tensor may be off by a few times what these two differ by.
A ReLU that rounding puts on the other side of zero changes a gradient by more than that. So what is still off is held
against one device in float64, where a wrong op is as wrong, and rounding is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..errors import RankError
from ..graph import OperatorGraph
from ..strategy import Configuration, Strategy
from ..topology import Topology
from ..tracing import Workload, capture
from ..tracing.precision import DEVICE_TYPES, eager_loss
from .launch import parallelize
from .locating import difference, first_difference
from .parallel import Parallel
from .transports import Transport, alone

# Largest difference, as a share of the largest element, that rounding explains in any model.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 2**-7, "float16": 2**-9}
WIDER = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}
NOISE = 5.0  # times the distance from a wider type
STEPS = 3
RATE = 0.01  # of SGD: Adam would divide true zeros' noise by itself, and hide how large gradients are

Batch = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Trained:
    """What a few steps come to: losses, gradients of the first and of the last step (compiled segments run from the
    second on), and weights."""

    losses: list[torch.Tensor]
    first: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]


@contextmanager
def _without_tf32() -> Iterator[None]:
    """cuDNN's own rounds to three digits, which depend on how a convolution is split."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@_without_tf32()
def check(
    work: Workload, graph: OperatorGraph, strategy: Strategy, *, transport: Transport, place: torch.device, seed: int,
    **running: Any,
) -> str:  # fmt: skip
    """Train a few steps on the workload's own batch, under the strategy and on one device; `running` goes to
    `parallelize`. Returns what was found, in a sentence. Every rank calls it; raises RankError on all of them where
    rounding does not explain a difference, and names the first op that differs."""
    ranks = _Ranks(transport, place, seed, running)
    errors = ranks.errors(work, graph, strategy)
    allowed = _allowed(work, graph, errors, transport)
    worst = max(errors, key=lambda name: errors[name] / allowed[name])
    losses = max(errors[name] for name in errors if name.startswith("loss"))
    most = max(errors, key=lambda name: errors[name])
    reference = "one device" if _plain_says_the_same(graph, strategy, place) else "the same graph on one device"
    found = (
        f"Checked {STEPS} steps against {reference}: losses differ by at most {losses:.1e}, gradients and weights by "
    )
    if errors[worst] <= allowed[worst]:
        return f"{found}{errors[most]:.1e} ({most}), where rounding explains {allowed[most]:.1e}."
    if all(errors[name] <= allowed[name] for name in errors if name.startswith("loss")):
        exact = _exact_error(ranks, work, graph, strategy)
        if exact <= TOLERANCES["float64"]:
            return f"{found}{errors[most]:.1e} ({most}), which rounding explains: in float64 it is {exact:.1e}."
    tolerance = 10 * TOLERANCES[_narrowest(graph)]
    culprit = first_difference(work, graph, strategy, work.batch, transport, place, tolerance)
    where = (
        f"op {culprit.what!r} is the first that differs, by {culprit.error:.1e}" if culprit else "no op's forward does"
    )
    raise RankError(
        f"this strategy does not train like one device: losses differ by {losses:.1e}, {worst!r} by "
        f"{errors[worst]:.1e}, where rounding explains {allowed[worst]:.1e}; {where}"
    )


@dataclass(frozen=True)
class _Ranks:
    """Who trains, and how."""

    transport: Transport
    place: torch.device
    seed: int
    running: dict[str, Any]

    def errors(self, work: Workload, graph: OperatorGraph, strategy: Strategy) -> dict[str, float]:
        """How far each loss, gradient and weight lies from one device's."""
        plain = _plain_says_the_same(graph, strategy, self.place)
        running = self.running | {"dropout": "replay" if plain else "counter", "device": self.place}
        torch.manual_seed(self.seed)
        wanted = _plain(work, graph.settings.precision) if plain else _one_device(work, graph, strategy, running)
        torch.manual_seed(self.seed)
        made = parallelize(
            work, graph, strategy.topology, strategy, transport=self.transport, in_place=False, **running
        )
        errors = _differences(_trained(made, work), wanted, _floor(graph))
        if graph.settings.batch_norm == "local":  # which part's statistics a buffer keeps is the device's own business
            buffers = {name for name, _ in work.model.named_buffers()}
            errors = {name: error for name, error in errors.items() if name not in buffers}
        everyone = self.transport.exchange(errors)  # GPUs do not add in one order each time; the ranks must agree
        return {name: max(own[name] for own in everyone) for name in errors}


def _exact_error(ranks: _Ranks, work: Workload, graph: OperatorGraph, strategy: Strategy) -> float:
    """The largest difference of the same strategy in float64, where no ReLU is on the other side of zero for having
    been summed in another order. Autocast changes no ops, so the strategy fits."""
    if _narrowest(graph) == "float64":
        return float("inf")
    settings = graph.settings
    exact = replace(work, model=deepcopy(work.model)).to("float64")
    found = capture(exact, batch_dim=settings.batch_dims, batch_norm=settings.batch_norm, chunk=settings.chunk)
    chosen = {op.name: strategy[op.name] for op in found.ops}
    same = Strategy(found, strategy.topology, chosen, strategy.microbatches)
    return max(ranks.errors(exact, found, same).values())


def _plain_says_the_same(graph: OperatorGraph, strategy: Strategy, place: torch.device) -> bool:
    """Whether plain PyTorch on one device computes what the graph does. A GPU's own dropout masks cannot be drawn
    again, nor those of microbatches; local batch norm takes the statistics of parts, any of microbatches; and autocast
    follows the device that it names."""
    rules = graph.settings.precision.removeprefix("autocast:")
    if strategy.microbatches > 1 and (graph.draws or graph.has_batch_norm):
        return False
    return not (
        (graph.draws and place.type == "cuda")
        or graph.settings.batch_norm == "local"
        or (rules in DEVICE_TYPES and rules != place.type)
    )


def _narrowest(graph: OperatorGraph) -> str:
    """The least exact type that anything is computed in."""
    used = {value.dtype for op in graph.ops for value in op.values}
    return max(used & TOLERANCES.keys(), key=lambda dtype: TOLERANCES[dtype])


def _floor(graph: OperatorGraph) -> float:
    """A gradient this share of the largest of all counts as zero: where a true one is, both sides are noise."""
    return 1e-6 if _narrowest(graph) == "float64" else 1e-2


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=RATE)


def _plain(work: Workload, precision: str) -> Trained:
    """Plain PyTorch, on a copy of the model."""
    work = replace(work, model=deepcopy(work.model))
    model = work.model

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = eager_loss(work, work.batch, precision)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def gradients() -> dict[str, torch.Tensor]:
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    return _steps(step, gradients, model.state_dict, _sgd(model.parameters()))


def _trained(parallel: Parallel, work: Workload) -> Trained:
    optimizer = _sgd(parallel.parameters())
    return _steps(lambda: parallel.step(*work.batch), parallel.gradients, parallel.state_dict, optimizer)


def _steps(
    step: Callable[[], torch.Tensor], gradients: Callable[[], dict[str, torch.Tensor]],
    state: Callable[[], dict[str, torch.Tensor]], optimizer: torch.optim.Optimizer,
) -> Trained:  # fmt: skip
    losses, first, last = [], {}, {}
    for number in range(STEPS):
        losses.append(step())
        if number == 0:
            first = gradients()
        if number == STEPS - 1:
            last = gradients()
        optimizer.step()
    return Trained(losses, first, last, state())


def _one_device(work: Workload, graph: OperatorGraph, strategy: Strategy, running: dict[str, Any]) -> Trained:
    """The graph itself, every op whole; but one that takes statistics part by part keeps its parts."""
    one = Topology(strategy.topology.devices[:1], ())

    def configured(name: str) -> Configuration:
        if all(step.kind != "local_batch_norm" for step in graph.op(name).steps):
            return Configuration({}, (0,))
        return Configuration(strategy[name].degrees, (0,) * len(strategy[name].devices))

    whole = Strategy(graph, one, {op.name: configured(op.name) for op in graph.ops}, strategy.microbatches)
    running = running | {"compile": False, "cuda_graphs": False}
    return _trained(parallelize(work, graph, one, whole, transport=alone(), in_place=False, **running), work)


def _differences(found: Trained, wanted: Trained, floor: float) -> dict[str, float]:
    """Of each loss, gradient and weight, as a share of its largest element."""
    errors = {f"loss of step {i}": difference(a, b) for i, (a, b) in enumerate(zip(found.losses, wanted.losses))}
    for prefix, ours, theirs, share in (
        ("gradient of ", found.first, wanted.first, floor),
        ("last gradient of ", found.last, wanted.last, floor),
        ("", found.state, wanted.state, 1e-6),
    ):
        sizes = [float(t.abs().max()) for t in theirs.values() if t.is_floating_point() and t.numel()]
        least = share * max(sizes, default=0.0)
        errors |= {f"{prefix}{name}": difference(ours[name], t, least) for name, t in theirs.items() if name in ours}
    return errors


def _allowed(work: Workload, graph: OperatorGraph, errors: dict[str, float], transport: Transport) -> dict[str, float]:
    """How much of each difference rounding explains."""
    narrowest = _narrowest(graph)
    usual = TOLERANCES[narrowest]
    noise: dict[str, float] = {}
    if narrowest in WIDER and any(transport.exchange(max(errors.values()) > usual)):
        noise = _noise(work, graph)
    return {name: max(usual, NOISE * noise.get(name, 0.0)) for name in errors}


def _noise(work: Workload, graph: OperatorGraph) -> dict[str, float]:
    """What plain PyTorch in these types differs by from itself in wider ones, without dropout."""
    precision = graph.settings.precision
    with ExitStack() as stack:
        stack.enter_context(_NoDropout())
        own = _plain(work, precision)
        wide = work
        if not precision:
            wide = replace(work, model=deepcopy(work.model)).to(WIDER[_narrowest(graph)])
        wanted = _plain(wide, "")
    return _differences(own, wanted, _floor(graph))


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.dropout:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {} if len(args) > 4 else {"dropout_p": 0.0}
        return func(*args, **kwargs)
