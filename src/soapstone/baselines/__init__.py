"""Strategies to start from and to compare with."""

from .expert import expert, megatron
from .sharded import fsdp, zero1
from .simple import data_parallel, model_parallel, random

__all__ = ["BASELINES", "UNSHARDED", "data_parallel", "expert", "fsdp", "megatron", "model_parallel", "random", "zero1"]

# By their short names.
BASELINES = {
    "data": data_parallel, "model": model_parallel, "expert": expert, "zero1": zero1, "fsdp": fsdp,
    "megatron": megatron,
}  # fmt: skip
UNSHARDED = ("data", "model", "expert")  # for transformers the expert is Megatron
