"""The folder that checkpoints are in: `step-000000100` and so on, and halves of such."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...files import HALF
from .index import NAME

_PATTERN = re.compile(r"step-(\d{9,18})(?:\.(\d{1,9}))?")


class Saved(NamedTuple):
    """A whole checkpoint: its step, how often that step was saved before, and where it is."""

    step: int
    again: int
    path: Path


def saved_in(folder: Path) -> list[Saved]:
    """The whole checkpoints of a folder, the newest last."""
    matches = [(path.parent, _PATTERN.fullmatch(path.parent.name)) for path in folder.glob(f"step-*/{NAME}")]
    return sorted(Saved(int(match[1]), int(match[2] or 0), path) for path, match in matches if match)


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder; the folder itself where it is one."""
    if (folder / NAME).exists():
        return folder
    found = saved_in(folder)
    return found[-1].path if found else None


def name_of(step: int, others: Iterable[Saved] = ()) -> str:
    """What a checkpoint is called; one of a step that was saved before does not take the other's name."""
    again = max((other.again + 1 for other in others if other.step == step), default=0)
    return f"step-{step:09}.{again}" if again else f"step-{step:09}"


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest, and older ones of a step that was saved again."""
    newest = {saved.step: saved for saved in saved_in(folder)}
    stay = {saved.path for saved in list(newest.values())[-keep:]}
    for saved in saved_in(folder):
        if saved.path not in stay:
            half = saved.path.with_name(f"{HALF}{saved.path.name}")  # never seen with some of its files
            with suppress(OSError):
                saved.path.rename(half)
            shutil.rmtree(half, ignore_errors=True)


def remove_halves(folder: Path) -> None:
    """Remove what a save left that did not come to its end."""
    for path in folder.glob(f"{HALF}step-*"):
        shutil.rmtree(path, ignore_errors=True)
