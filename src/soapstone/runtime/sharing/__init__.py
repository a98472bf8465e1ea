"""Emulates several devices and nodes on one machine, for experiments and tests: ranks that share one GPU, and nodes
with real links between them."""

from .gpu import shared_gpu
from .nodes import MadeNodes, agents, cpu_ranks, made_nodes
from .processes import run_ranks

__all__ = ["MadeNodes", "agents", "cpu_ranks", "made_nodes", "run_ranks", "shared_gpu"]
