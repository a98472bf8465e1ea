"""Captured graphs on disk, in the user's cache folder, so that a second command need not load torch.

An entry is named by what was asked for and by whose code answers, and lists the source files that it was made from; it
counts only while all of them are as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _core
from .errors import SoapstoneError
from .files import read_json, write_atomically
from .graph import OperatorGraph

KEPT = 200  # graphs
_PACKAGE = Path(__file__).parent
_INSTALLED = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def folder() -> Path:
    """$SOAPSTONE_CACHE, else soapstone in the user's cache folder."""
    if own := os.environ.get("SOAPSTONE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "soapstone"


def find(request: dict[str, Any]) -> OperatorGraph | None:
    """The graph of an earlier request; None where there is none, or it is damaged or out of date."""
    path = _path(request)
    try:
        entry = read_json(path)
        if any(_stamp(Path(name)) != stamp for name, stamp in entry["sources"].items()):
            return None
        return OperatorGraph.from_data(entry["graph"], str(path))
    except (SoapstoneError, KeyError, TypeError, AttributeError):
        return None


def stamps(sources: Iterable[Path]) -> dict[str, str | None]:
    """What the files are like now."""
    return {str(source): _stamp(source) for source in sources}


def keep(request: dict[str, Any], graph: OperatorGraph, sources: dict[str, str | None]) -> None:
    """Write a graph for later requests; where the folder cannot be written, there is no cache. `sources` are stamps
    from before the capture: a file that changed meanwhile does not count as read."""
    path = _path(request)
    entry = {"request": request, "sources": sources, "graph": graph.to_data()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(entry))
        _drop_oldest(path.parent)
    except (SoapstoneError, OSError):
        pass


def _path(request: dict[str, Any]) -> Path:
    whose = [request, _own_code(), metadata.version("torch"), platform.python_version()]
    name = hashlib.sha256(json.dumps(whose, sort_keys=True).encode()).hexdigest()[:32]
    return folder() / "graphs" / f"{name}.json"


@cache
def _own_code() -> str:
    digest = hashlib.sha256()
    for path in (*sorted(_PACKAGE.rglob("*.py")), Path(_core.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp(path: Path) -> str | None:
    """A user's file by its content, an installed one by its size and time; None for one that is gone."""
    try:
        if any(path.is_relative_to(place) for place in _INSTALLED):
            found = path.stat()
            return f"{found.st_size} {found.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _drop_oldest(graphs: Path) -> None:
    found = sorted(graphs.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in found[:-KEPT]:
        path.unlink(missing_ok=True)
