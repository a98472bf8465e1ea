"""Strategies to start from and to compare with."""

from .expert import expert, megatron
from .pipeline import grid, named, pipeline
from .sharded import fsdp, zero1
from .simple import data_parallel, model_parallel, random

__all__ = [
    "BASELINES", "UNSHARDED", "data_parallel", "expert", "fsdp", "grid", "megatron", "model_parallel", "named",
    "pipeline", "random", "zero1",
]  # fmt: skip

# By their short names.
BASELINES = {
    "data": data_parallel, "model": model_parallel, "expert": expert, "zero1": zero1, "fsdp": fsdp,
    "megatron": megatron, "pipeline": pipeline,
}  # fmt: skip
UNSHARDED = ("data", "model", "expert")  # for transformers the expert is Megatron
