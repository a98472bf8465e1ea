"""Strategies to start from and to compare with."""

from ..graph import OperatorGraph
from ..strategy import Strategy
from ..topology import Topology
from .expert import expert, megatron
from .pipeline import USUAL, grid, is_grid, named_grid, pipeline, pipelines
from .sharded import fsdp, zero1
from .simple import data_parallel, model_parallel, random

__all__ = [
    "BASELINES", "UNSHARDED", "USUAL", "baseline", "data_parallel", "expert", "fsdp", "grid", "is_baseline", "is_grid",
    "megatron", "model_parallel", "pipeline", "pipelines", "random", "zero1",
]  # fmt: skip

# By their short names.
BASELINES = {
    "data": data_parallel, "model": model_parallel, "expert": expert, "zero1": zero1, "fsdp": fsdp,
    "megatron": megatron, "pipeline": pipeline,
}  # fmt: skip
UNSHARDED = ("data", "model", "expert")  # for transformers the expert is Megatron


def is_baseline(name: str) -> bool:
    """Whether it has such a name, or one such as "dp2-tp4-pp2-m16", for replicas, tensor parallelism, stages and
    microbatches."""
    return name in BASELINES or is_grid(name)


def baseline(name: str, graph: OperatorGraph, topology: Topology) -> Strategy:
    """The one of this name. Raises StrategyError where a grid does not fit the devices or the batch."""
    return BASELINES[name](graph, topology) if name in BASELINES else named_grid(name, graph, topology)
