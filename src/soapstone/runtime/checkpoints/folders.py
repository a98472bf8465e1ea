"""The folder that checkpoints are in: `step-000000100` and so on, and temporary folders of saves in progress."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ...errors import RankError
from ...files import HALF
from .index import NAME

_PATTERN = re.compile(r"step-(\d{9,18})(?:\.(\d{1,9}))?")


class Saved(NamedTuple):
    """A checkpoint: its step, how often that step was saved before, and where it is."""

    step: int
    again: int
    path: Path


def saved_in(folder: Path) -> list[Saved]:
    """The checkpoints of a folder, the newest last. A checkpoint without an index is among them: a save gives a folder
    its name only when it is complete, so the index was lost later."""
    matches = [(path, _PATTERN.fullmatch(path.name)) for path in folder.glob("step-*")]
    return sorted(Saved(int(match[1]), int(match[2] or 0), path) for path, match in matches if match)


def candidates(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first; the folder itself if it is one."""
    found = [saved.path for saved in reversed(saved_in(folder))]
    is_one = (folder / NAME).exists() or (not found and folder.exists() and _PATTERN.fullmatch(folder.name))
    return [folder] if is_one else found


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder, which may be damaged; the folder itself if it is one."""
    return next(iter(candidates(folder)), None)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that no load takes it for the newest. Returns its new path."""
    for number in count():
        place = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number else ""))
        if place.exists():
            continue
        try:
            path.rename(place)
        except OSError as error:
            raise RankError(f"cannot rename the damaged checkpoint {path}: {error.strerror}; move it away") from None
        return place
    raise AssertionError


def name_of(step: int, others: Iterable[Saved] = ()) -> str:
    """The name of a checkpoint. If its step was saved before, a number is added."""
    again = max((other.again + 1 for other in others if other.step == step), default=0)
    return f"step-{step:09}.{again}" if again else f"step-{step:09}"


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest, and older ones of a step that was saved again."""
    newest = {saved.step: saved for saved in saved_in(folder) if (saved.path / NAME).exists()}
    stay = list(newest.values())[-keep:]
    for saved in saved_in(folder):
        is_whole = (saved.path / NAME).exists()
        if saved not in stay and (is_whole or saved < min(stay, default=saved)):  # newer damaged ones stay for the user
            half = saved.path.with_name(f"{HALF}{saved.path.name}")  # so that nobody sees it with some of its files
            with suppress(OSError):
                saved.path.rename(half)
            shutil.rmtree(half, ignore_errors=True)


def remove_halves(folder: Path) -> None:
    """Remove the temporary folders of saves that were not completed."""
    for path in folder.glob(f"{HALF}step-*"):
        shutil.rmtree(path, ignore_errors=True)
