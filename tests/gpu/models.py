"""The models that train on GPU ranks: those of the other tests, and the zoo's, small, all in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import soapstone as ss
from tests.support.models import ALL, seeded
from tests.support.training import STEPS

ZOO: dict[str, dict[str, Any]] = {
    "lenet": {"batch": 6},
    "alexnet": {"batch": 4, "image": 64, "width": 4, "hidden": 12, "classes": 5},
    "inception-v3": {"batch": 6, "image": 75, "divide": 16, "classes": 5},
    "resnet-101": {"batch": 6, "image": 64, "blocks": (1, 1, 1, 1), "width": 4, "classes": 5},
    "rnntc": {"batch": 4, "vocab": 11, "length": 3, "hidden": 8, "layers": 2},
    "rnnlm": {"batch": 4, "vocab": 12, "length": 3, "hidden": 8, "layers": 2},
    "nmt": {"batch": 4, "vocab": 12, "length": 3, "hidden": 8, "layers": 1},
    "gpt2": {"batch": 4, "vocab": 16, "length": 6, "width": 8, "heads": 2, "layers": 2},
    "llama": {"batch": 4, "vocab": 16, "length": 6, "width": 16, "heads": 4, "key_heads": 2, "inner": 24, "layers": 2},
    "mixtral": {
        "batch": 4,
        "vocab": 16,
        "length": 6,
        "width": 16,
        "heads": 4,
        "key_heads": 2,
        "inner": 24,
        "experts": 4,
        "layers": 1,
    },
    "dit": {"batch": 4, "image": 8, "channels": 2, "width": 8, "heads": 2, "layers": 1, "classes": 5},
    "vit": {"batch": 4, "image": 16, "patch": 4, "width": 8, "heads": 2, "layers": 1, "classes": 5},
}


def _zoo(name: str) -> Callable[[], ss.Workload]:
    def make() -> ss.Workload:
        with seeded(7):
            return ss.zoo.load(name, **ZOO[name]).to("float64")

    return make


MODELS: dict[str, Callable[[], ss.Workload]] = {name: case.workload for name, case in ALL.items()}
MODELS |= {name: _zoo(name) for name in ZOO}


ONE_STEP = {"inception-v3", "resnet-101"}  # batch norm after batch norm: weights of a second step are all rounding


def batches(name: str, work: ss.Workload) -> list[tuple[torch.Tensor, ...]]:
    """A few batches like a workload's own."""
    count = 1 if name in ONE_STEP else STEPS
    generator = torch.Generator().manual_seed(3)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape, generator=generator, dtype=like.dtype)
        return like[torch.randperm(len(like), generator=generator)]

    return [tuple(drawn(tensor) for tensor in work.batch) for _ in range(count)]
