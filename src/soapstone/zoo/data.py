"""Random batches for the zoo's models, and what scores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Made = tuple[tuple[torch.Tensor, ...], torch.Tensor]
Sizes = dict[str, Any]


def images(batch: int, sizes: Sizes, channels: int = 3) -> Made:
    shape = (batch, channels, sizes["image"], sizes["image"])
    return (torch.randn(shape),), torch.randint(0, sizes["classes"], (batch,))


def digits(batch: int, sizes: Sizes) -> Made:
    return images(batch, sizes, channels=1)


def words(batch: int, sizes: Sizes) -> Made:
    shape = (batch, sizes["length"])
    return (torch.randint(0, sizes["vocab"], shape),), torch.randint(0, sizes["vocab"], shape)


def latents(batch: int, sizes: Sizes) -> Made:
    """Images with noise, the time and the class of each; the noise is what is wanted."""
    shape = (batch, sizes["channels"], sizes["image"], sizes["image"])
    time, label = torch.rand(batch) * 1000, torch.randint(0, sizes["classes"], (batch,))
    return (torch.randn(shape), time, label), torch.randn(shape)


def text(batch: int, sizes: Sizes) -> Made:
    tokens = torch.randint(0, sizes["vocab"], (batch, sizes["length"]))
    return (tokens,), torch.randint(0, sizes["classes"], (batch,))


def sentences(batch: int, sizes: Sizes) -> Made:
    source, target, wanted = (torch.randint(0, sizes["vocab"], (batch, sizes["length"])) for _ in range(3))
    return (source, target), wanted


def score_words(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over every position of every sample."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def score_noise(drawn: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Of what was drawn the first half is the noise; the other, its variance, is not scored here."""
    return F.mse_loss(drawn[:, : noise.shape[1]], noise)


DATA: dict[str, Callable[[int, Sizes], Made]] = {
    f.__name__: f for f in (images, digits, words, latents, text, sentences)
}
LOSSES: dict[str, Callable[..., torch.Tensor]] = {"class": F.cross_entropy, "words": score_words, "noise": score_noise}
