"""The paper's models and today's, as workloads with random data: `load("nmt", batch=64)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import CaptureError
from ..tracing import Workload
from .cnn import AlexNet, Inception, LeNet, ResNet
from .rnn import NMT, RNNLM, RNNTC
from .transformer import GPT2, Llama, ViT

__all__ = ["load", "names"]


def words(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over every position of every sample."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Entry:
    """How a model and its data are made: the data's sizes with their defaults, and which of them the model shares."""

    model: Callable[..., nn.Module]
    batch: int
    data: dict[str, int]
    shared: tuple[str, ...]
    make: Callable[[int, dict[str, int]], tuple[tuple[torch.Tensor, ...], torch.Tensor]]
    loss: Callable[..., torch.Tensor]


def _images(channels: int) -> Callable[[int, dict[str, int]], tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    def make(batch: int, sizes: dict[str, int]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        size = sizes["image"]
        return (torch.randn(batch, channels, size, size),), torch.randint(0, sizes["classes"], (batch,))

    return make


def _tokens(batch: int, sizes: dict[str, int]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    shape = (batch, sizes["length"])
    return (torch.randint(0, sizes["vocab"], shape),), torch.randint(0, sizes["vocab"], shape)


def _labelled(batch: int, sizes: dict[str, int]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    tokens = torch.randint(0, sizes["vocab"], (batch, sizes["length"]))
    return (tokens,), torch.randint(0, sizes["classes"], (batch,))


def _pairs(batch: int, sizes: dict[str, int]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    source, target, wanted = (torch.randint(0, sizes["vocab"], (batch, sizes["length"])) for _ in range(3))
    return (source, target), wanted


_IMAGENET = {"image": 224, "classes": 1000}
_WORDS = {"vocab": 10_000, "length": 40}
_ENTRIES = {
    "lenet": Entry(LeNet, 64, {"image": 32, "classes": 10}, ("classes",), _images(1), F.cross_entropy),
    "alexnet": Entry(AlexNet, 256, _IMAGENET, ("classes",), _images(3), F.cross_entropy),
    "inception-v3": Entry(Inception, 64, {"image": 299, "classes": 1000}, ("classes",), _images(3), F.cross_entropy),
    "resnet-101": Entry(ResNet, 64, _IMAGENET, ("classes",), _images(3), F.cross_entropy),
    "rnntc": Entry(
        RNNTC, 64, {"vocab": 10_000, "length": 40, "classes": 2}, ("vocab", "classes"), _labelled, F.cross_entropy
    ),
    "rnnlm": Entry(RNNLM, 64, _WORDS, ("vocab",), _tokens, words),
    "nmt": Entry(NMT, 64, {"vocab": 32_000, "length": 40}, ("vocab",), _pairs, words),
    "gpt2": Entry(GPT2, 8, {"vocab": 50_257, "length": 1024}, ("vocab", "length"), _tokens, words),
    "llama": Entry(Llama, 8, {"vocab": 32_000, "length": 2048}, ("vocab",), _tokens, words),
    "vit": Entry(ViT, 64, _IMAGENET, ("image", "classes"), _images(3), F.cross_entropy),
}


def names() -> list[str]:
    return list(_ENTRIES)


def load(name: str, *, batch: int | None = None, **sizes: Any) -> Workload:
    """A model of the zoo with random weights and data; `batch` is the whole batch. Raises CaptureError for an unknown
    name or size."""
    if name not in _ENTRIES:
        raise CaptureError(f"the zoo has no {name!r}; it has {', '.join(_ENTRIES)}")
    entry = _ENTRIES[name]
    count = entry.batch if batch is None else batch
    if type(count) is not int or count < 1:
        raise CaptureError(f"batch={batch!r} is not a number of samples; use 1 or more")
    data = {key: sizes.get(key, default) for key, default in entry.data.items()}
    told = {key: size for key, size in sizes.items() if key not in data} | {key: data[key] for key in entry.shared}
    try:
        model = entry.model(**told)
    except TypeError as error:
        raise CaptureError(f"{name} cannot be made with {sizes}: {str(error).partition('()')[2].strip()}") from None
    inputs, target = entry.make(count, data)
    return Workload(model, inputs, loss=entry.loss, targets=(target,))
