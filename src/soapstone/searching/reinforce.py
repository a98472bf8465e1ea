"""Device placement by reinforcement learning (Mirhoseini et al., 2017) in our frame: a policy learns where to put each
layer, whole, and the simulator is its reward.

An LSTM goes through the layers in order. It reads what each computes, gives and keeps, and where the one before was
put, and draws a device. Placements are drawn in batches. One whose root of the makespan is below the mean so far is
made more likely, one above it less (REINFORCE), in units of the batch's deviation, so that one rate of learning suits
all models. One that does not fit into memory counts as the slowest of its batch; where none fits, the one that needs
least above what there is is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log1p

import torch
from torch import nn

from .. import _core
from ..baselines.simple import weighty_layers
from ..errors import SoapstoneError
from ..graph import OperatorGraph
from ..simulator import Training, translated_errors
from ..strategy import Native
from ..topology import Topology
from .chain import NEVER
from .interrupts import interrupts
from .mcmc import check_arguments
from .outcome import Improvement, Progress, SearchResult
from .problem import Problem

BATCH = 10  # placements that are drawn before the policy learns from them
HIDDEN = 32
RATE = 0.03
MEMORY = 0.9  # of the mean, from batch to batch
ENTROPY = 0.01  # what a policy that is unsure is given, so that it goes on looking around


class Policy(nn.Module):
    """Draws a device for each layer from the layers' features, one after the other."""

    def __init__(self, num_features: int, num_devices: int) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.cell = nn.LSTMCell(num_features + num_devices, HIDDEN)
        self.score = nn.Linear(HIDDEN, num_devices)

    def forward(self, features: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """So many placements, by row, with the logarithm of each one's probability and the mean entropy of a draw."""
        state = (torch.zeros(count, HIDDEN), torch.zeros(count, HIDDEN))
        before = torch.zeros(count, self.num_devices)
        drawn, likely, entropy = [], torch.zeros(count), torch.zeros(())
        for row in features:
            state = self.cell(torch.cat([row.expand(count, -1), before], 1), state)
            logs = self.score(state[0]).log_softmax(1)
            drawn.append(logs.exp().multinomial(1))
            likely = likely + logs.gather(1, drawn[-1]).squeeze(1)
            entropy = entropy - (logs.exp() * logs).sum(1).mean() / len(features)
            before = nn.functional.one_hot(drawn[-1].squeeze(1), self.num_devices).float()
        return torch.cat(drawn, 1), likely, entropy


def reinforce(
    graph: OperatorGraph,
    topology: Topology,
    *,
    training: Training = Training(),
    budget: float | None = 60.0,
    proposals: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda _: None,
) -> SearchResult:
    """The best placement of whole layers that a budget of seconds, or of placements, finds. Ctrl-C ends it with what it
    has. Raises SoapstoneError where none fits into the devices' memory."""
    check_arguments(budget, proposals, seed, "soapstone", 1)
    problem = Problem(
        graph, topology, training=training, progress=lambda share: progress(Progress("asking for costs", share))
    )
    trials = _Trials(graph, problem.chain(f"{seed} reinforce"))
    chain = trials.chain
    ends = (inf if budget is None else budget, NEVER if proposals is None else proposals)
    with interrupts(chain.stop) as interrupt, torch.random.fork_rng(devices=[]), translated_errors():
        torch.manual_seed(seed)
        _learn(trials, topology.num_devices, ends, progress)
    if chain.best_overflow:
        raise SoapstoneError("no placement of whole layers was found that fits into the devices' memory; use search")
    return SearchResult(
        problem.strategy(chain.best), chain.best_makespan * 1e-9, tuple(trials.history), trials.count, chain.seconds,
        "budget ended", 0, interrupt.happened,
    )  # fmt: skip


class _Trials:
    """The placements so far: each layer whole on one device."""

    def __init__(self, graph: OperatorGraph, chain: _core.Chain) -> None:
        self.graph, self.chain = graph, chain
        self.count, self.history = 0, list[Improvement]()
        self.layers = [[graph.index(op.name) for op in layer] for layer in weighty_layers(graph)]

    def costs(self, placement: Sequence[int]) -> tuple[float, float]:
        """The root of a placement's makespan in ns, and how far it is from fitting."""
        ops, chain = self.graph.ops, self.chain
        strategy: list[Native] = [([], [], 0, False, 0)] * len(ops)
        for layer, device in zip(self.layers, placement):
            for op in layer:
                strategy[op] = ([1] * len(ops[op].dims), [device], 0, False, 0)
        chain.go(strategy)
        self.count += 1
        if not self.history or chain.best_makespan * 1e-9 != self.history[-1].makespan:
            self.history.append(Improvement(self.count, chain.seconds, chain.best_makespan * 1e-9))
        return float(chain.makespan) ** 0.5, float(chain.overflow)

    @property
    def best(self) -> float | None:
        return None if self.chain.best_overflow else self.chain.best_makespan * 1e-9

    def features(self) -> torch.Tensor:
        """Of each layer: its work, what it gives and keeps, and how far along it is; about 0 to 1 each."""
        rows = []
        for number, layer in enumerate(self.layers):
            ops = [self.graph.ops[index] for index in layer]
            made = {operand.tensor for op in ops for operand in op.outputs}
            read = {operand.tensor for op in ops for operand in op.inputs}
            kept = {tensor for tensor in read if self.graph.tensors[tensor].source == "parameter"}
            sizes = [sum(self.graph.tensors[tensor].bytes for tensor in tensors) for tensors in (made, kept)]
            work = sum(op.flops for op in ops)
            rows.append([*(log1p(size) / 30 for size in (work, *sizes)), number / len(self.layers)])
        return torch.tensor(rows)


def _learn(trials: _Trials, num_devices: int, ends: tuple[float, int], progress: Callable[[Progress], None]) -> None:
    """Draw placements and learn from them, until so many seconds are over or so many placements drawn."""
    features, chain = trials.features(), trials.chain
    policy = Policy(features.shape[1], num_devices)
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE)
    seconds, most = ends
    mean = 0.0
    while trials.count < most and (trials.count == 0 or chain.seconds < seconds) and not chain.is_stopped:
        drawn, likely, entropy = policy(features, min(BATCH, most - trials.count))
        roots, overflows = torch.tensor([trials.costs(placement) for placement in drawn.tolist()]).unbind(1)
        fits = overflows == 0
        if fits.any():
            roots[~fits] = roots[fits].max()
            mean = MEMORY * mean + (1 - MEMORY) * float(roots.mean()) if mean else float(roots.mean())
            worse = roots - mean
        else:
            worse = overflows - overflows.mean()
        worse /= worse.square().mean().sqrt().clamp(min=1e-3 * max(mean, 1.0))
        loss = (worse * likely).mean() - ENTROPY * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = min(max(trials.count / most, chain.seconds / seconds), 1.0)
        progress(Progress("searching", share, trials.count, chain.seconds, trials.best))
