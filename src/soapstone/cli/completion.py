"""What the shell completes: names that are built in, and files that may be meant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..baselines import BASELINES
from ..topology import preset_names
from ..zoo import names


def models(incomplete: str) -> list[str]:
    return _matching(incomplete, names(), ".py")


def topologies(incomplete: str) -> list[str]:
    before, plus, _ = incomplete.rpartition("+")
    presets = [f"{before}{plus}{name}:" for name in preset_names()]
    return _matching(incomplete, ["here", *presets], ".yaml", ".yml")


def strategies(incomplete: str) -> list[str]:
    return _matching(incomplete, BASELINES, ".json")


def _matching(incomplete: str, known: Iterable[str], *suffixes: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)] + _files(incomplete, suffixes)


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Folders, and files of these kinds; hidden ones where a dot was typed."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        return []
    shown = [path for path in found if path.name.startswith(start) and (start or not path.name.startswith("."))]
    return [
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in shown
        if path.is_dir() or path.suffix in suffixes
    ]
