"""Strategies to start from and to compare with."""

from .expert import expert
from .simple import data_parallel, model_parallel, random

__all__ = ["BASELINES", "data_parallel", "expert", "model_parallel", "random"]

BASELINES = {"data": data_parallel, "model": model_parallel, "expert": expert}  # by their short names
