"""Train on one device with plain PyTorch and on several ranks with a strategy, and compare all that comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport, Transport

STEPS = 3
SEED = 5

Batches = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Record:
    """What training leaves behind: losses, the gradients of each step, and the final weights and buffers."""

    losses: list[torch.Tensor]
    gradients: list[dict[str, torch.Tensor]]
    state: dict[str, torch.Tensor]


def optimizer_of(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # type: ignore[arg-type]


def train_plain(work: ss.Workload, batches: Batches) -> Record:
    optimizer = optimizer_of(work.model.parameters())
    losses, gradients = [], []
    torch.manual_seed(SEED)
    for batch in batches:
        optimizer.zero_grad()
        loss = work.compute_loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        gradients.append({n: p.grad.clone() for n, p in work.model.named_parameters() if p.grad is not None})
        optimizer.step()
    return Record(losses, gradients, {n: t.clone() for n, t in work.model.state_dict().items()})


def train_rank(
    work: ss.Workload,
    graph: ss.OperatorGraph,
    strategy: ss.Strategy,
    transport: Transport | None,
    batches: Batches,
    **options: Any,
) -> Record:
    """One rank; the caller has set torch's seed to SEED, where replayed dropout begins."""
    parallel = ss.parallelize(
        work, graph, strategy.topology, strategy, dropout="replay", transport=transport, **options
    )
    optimizer = optimizer_of(parallel.parameters())
    losses, gradients = [], []
    for batch in batches:
        losses.append(parallel.step(*batch))
        gradients.append(parallel.gradients())
        optimizer.step()
    return Record(losses, gradients, parallel.state_dict())


def train_threads(
    make: Callable[[], ss.Workload],
    graph: ss.OperatorGraph,
    strategy: ss.Strategy,
    batches: Batches,
    *,
    strict: bool = True,
    timeout: float = 60.0,
) -> list[Record]:
    """Every rank a thread, each with a workload of its own."""
    workloads = [make() for _ in strategy.topology.devices]
    torch.manual_seed(SEED)

    def run(rank: int, transport: ThreadTransport) -> Record:
        return train_rank(workloads[rank], graph, strategy, transport, batches)

    return ss.run_threads(strategy.topology.num_devices, run, strict=strict, timeout=timeout)


def assert_same(found: Record, wanted: Record) -> None:
    for a, b in zip(found.losses, wanted.losses, strict=True):
        _close("loss", a, b, 0.0)
    for a_step, b_step in zip(found.gradients, wanted.gradients, strict=True):
        assert a_step.keys() == b_step.keys()
        # A true gradient of zero (a bias before batch norm) is noise on both sides: measure it by the largest.
        floor = 1e-6 * max(b.abs().max().item() for b in b_step.values())
        for name, b in b_step.items():
            _close(f"gradient of {name}", a_step[name], b, floor)
    assert found.state.keys() == wanted.state.keys()
    for name, b in wanted.state.items():
        _close(name, found.state[name], b, 1e-6)


def _close(what: str, a: torch.Tensor, b: torch.Tensor, floor: float) -> None:
    assert (a.shape, a.dtype) == (b.shape, b.dtype), what
    if not b.is_floating_point():
        assert torch.equal(a, b), what
        return
    assert torch.isfinite(a).all(), what
    error, scale = (a - b).abs().max().item(), max(b.abs().max().item(), floor)
    assert error <= 1e-9 * scale, f"{what}: off by {error:.3g} of {scale:.3g}"
