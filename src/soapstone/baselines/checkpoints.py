"""What a model says of itself: what it checkpoints is recomputed under every baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from ..graph import OperatorGraph
from ..strategy import Strategy
from ..topology import Topology

Baseline = Callable[[OperatorGraph, Topology], Strategy]


def with_model_checkpoints(make: Baseline) -> Baseline:
    """The same baseline, with what the model itself recomputes."""

    @wraps(make)
    def made(graph: OperatorGraph, topology: Topology) -> Strategy:
        strategy = make(graph, topology)
        marked = [op.name for op in graph.ops if op.recompute and not strategy[op.name].recompute]
        return strategy.replace({name: replace(strategy[name], recompute=True) for name in marked})

    return made
