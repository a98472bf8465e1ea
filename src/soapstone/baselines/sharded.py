"""Data parallelism whose devices share what each would keep."""

from __future__ import annotations

from dataclasses import replace

from ..graph import OperatorGraph
from ..strategy import Strategy
from ..topology import Topology
from .checkpoints import with_model_checkpoints
from .simple import data_parallel


@with_model_checkpoints
def zero1(graph: OperatorGraph, topology: Topology) -> Strategy:
    """Data parallelism in which every device updates a share of the parameters, and keeps the optimizer's state of that
    share alone (ZeRO; Rajbhandari et al., 2020)."""
    return _sharded(graph, topology, "optimizer")


@with_model_checkpoints
def fsdp(graph: OperatorGraph, topology: Topology) -> Strategy:
    """Data parallelism in which every device keeps a share of the parameters, and gathers the others when it needs
    them (Zhao et al., 2023)."""
    return _sharded(graph, topology, "all")


def _sharded(graph: OperatorGraph, topology: Topology, shard: str) -> Strategy:
    strategy = data_parallel(graph, topology)
    return strategy.replace({op: replace(configuration, shard=shard) for op, configuration in strategy.items()})
