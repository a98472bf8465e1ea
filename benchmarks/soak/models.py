"""What is trained: small models, float64, so that the right weights are known to many digits."""

from __future__ import annotations

from pathlib import Path

import torch

from soapstone.runtime.checkpoints import latest, whole_state

from .training import Training

STEPS = 240  # and three to warm up
EVERY = 10  # steps between checkpoints
TIMEOUT = 240  # seconds


def sizes(**given: int) -> tuple[str, ...]:
    return tuple(word for name, size in given.items() for word in ("--size", f"{name}={size}"))


MODELS: dict[str, tuple[str, ...]] = {
    "lenet": ("lenet",),
    "rnnlm": ("rnnlm", *sizes(length=3, hidden=24, vocab=60)),
    "gpt2": ("gpt2", *sizes(layers=1, width=24, heads=2, length=6, vocab=40)),
}


def training_of(
    model: str, ranks: int, folder: Path, *options: str, restarts: int = 0, cache: Path | None = None
) -> Training:
    """A model on so many ranks, with checkpoints in a folder."""
    given = ("--batch", "12", "--precision", "float64", "--optimizer", "adamw", "--steps", str(STEPS))
    places = ("-t", f"cpu:1x{ranks}", "--save", str(folder))
    environment = {"SOAPSTONE_CACHE": str(cache or folder.parent / "cache")}
    return Training(*MODELS[model], *given, *places, *options, ranks=ranks, restarts=restarts, environment=environment)


def weights_without_faults(model: str, folder: Path) -> dict[str, torch.Tensor]:
    """Those that one rank trains to, in a run to which nothing happens; made once."""
    path = folder / f"plain-{model}"
    if latest(path) is None:
        with training_of(model, 1, path) as plain:
            if plain.end(TIMEOUT) != 0:
                raise SystemExit(plain.output)
    return whole_state(path)
