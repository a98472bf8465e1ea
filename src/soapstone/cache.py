"""Captured graphs on disk, in the user's cache folder, so that a second command need not load torch.

An entry is named by what was asked for and by whose code answers, and lists the source files that it was made from; it
counts only while all of them are as they were, and its checksums are right. Entries are compressed, since a graph
repeats itself, and so do masks and other constants in it. All of them together stay below a limit: those that were not
used for longest go first.
Several processes may read, write and remove at once: an entry is written whole, and one that is gone is captured anew.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import stat
import sysconfig
import time
import zlib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _core
from .errors import SoapstoneError
from .files import HALF, checksum_of, is_whole, parse_json, read_bytes, shortened, write_atomically
from .graph import OperatorGraph

LIMIT = 2 * 2**30  # bytes
LARGEST = 2**29  # bytes of a graph that is read
_LARGE = 2**24  # bytes of a file that is not read for its stamp
STALE = 3600.0  # seconds after which nobody goes on writing a file
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_PACKAGE = Path(__file__).parent
_INSTALLED = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def folder() -> Path:
    """$SOAPSTONE_CACHE, else soapstone in the user's cache folder."""
    if own := os.environ.get("SOAPSTONE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "soapstone"


def limit() -> int:
    """Bytes that all graphs together may take: $SOAPSTONE_CACHE_LIMIT, else 2 GiB. Raises SoapstoneError."""
    text = os.environ.get("SOAPSTONE_CACHE_LIMIT", "").strip()
    if not text:
        return LIMIT
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]I?)?B?", text.upper(), re.ASCII)
    if match is None:
        raise SoapstoneError(f"SOAPSTONE_CACHE_LIMIT={shortened(text)} is not a size; write it as 500MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def entries() -> dict[Path, os.stat_result]:
    """The graphs that are kept, those that were used last first."""
    found = {}
    for path in (folder() / "graphs").glob("*.json*"):
        try:
            about = path.lstat()
        except OSError:  # another process removed it
            continue
        if not stat.S_ISDIR(about.st_mode):
            found[path] = about
    return dict(sorted(found.items(), key=lambda item: (-item[1].st_mtime_ns, item[0].name)))


def clear() -> int:
    """Remove all graphs; how many there were. Raises OSError where they cannot be removed."""
    found = entries()
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find(request: dict[str, Any]) -> OperatorGraph | None:
    """The graph of an earlier request; None where there is none, or it is damaged or out of date."""
    limit()  # a wrong one is better heard of before a capture
    path = _path(request)
    try:
        entry = _read(path)
        about = entry["about"]
        if not is_whole(about) or about["name"] != path.name or about["graph"] != entry["graph"]["checksum"]:
            return None  # damaged, or another request's
        if any(_stamp(Path(name)) != stamp for name, stamp in about["sources"].items()):
            return None
        graph = OperatorGraph.from_data(entry["graph"], str(path))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None
    _touch(path)
    return graph


def stamps(sources: Iterable[Path]) -> dict[str, str | None]:
    """What the files are like now; `$NAME` is a variable of the environment."""
    return {str(source): _stamp(source) for source in sources}


def keep(request: dict[str, Any], graph: OperatorGraph, sources: dict[str, str | None]) -> None:
    """Write a graph for later requests; where the folder cannot be written, there is no cache. `sources` are stamps
    from before the capture: a file that changed meanwhile does not count as read."""
    path = _path(request)
    data = graph.to_data()
    about = {"name": path.name, "sources": sources, "graph": data["checksum"]}
    entry = {"about": {**about, "checksum": checksum_of(about)}, "graph": data}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path)
        write_atomically(path, gzip.compress(json.dumps(entry).encode(), 3, mtime=0))
        _drop_oldest(path.parent)
    except (SoapstoneError, OSError):
        pass


def _make_room(path: Path) -> None:
    """Remove a link, a pipe or an empty folder that has an entry's name: writing would follow, wait or fail."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _path(request: dict[str, Any]) -> Path:
    whose = [request, _own_code(), metadata.version("torch"), platform.python_version()]
    name = hashlib.sha256(json.dumps(whose, sort_keys=True).encode()).hexdigest()[:32]
    return folder() / "graphs" / f"{name}.json.gz"


@cache
def _own_code() -> str:
    digest = hashlib.sha256()
    for path in (*sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.yaml")]), Path(_core.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp(path: Path) -> str | None:
    """A user's file by its content, an installed or large one by its size and time; None for one that is gone."""
    if str(path).startswith("$"):
        value = os.environ.get(str(path)[1:])
        return None if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()
    try:
        found = path.stat()
        if found.st_size > _LARGE or any(path.is_relative_to(place) for place in _INSTALLED):
            return f"{found.st_size} {found.st_mtime_ns}"
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Any:
    with gzip.open(io.BytesIO(read_bytes(path))) as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError("it is none of ours")
    return parse_json(text)


def _touch(path: Path) -> None:
    """The time of a file is when it was last used."""
    try:
        os.utime(path)
    except OSError:
        pass


def _drop_oldest(graphs: Path) -> None:
    """Remove what is beyond the limit, and what a process left half written when it was killed."""
    total = 0
    for path, found in entries().items():
        total += found.st_size
        if total > limit():
            path.unlink(missing_ok=True)
    for path in graphs.glob(f"{HALF}*"):
        try:
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
