"""Environment variables and files that code reads while it runs: a captured graph depends on them, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

_CODE = (".py", ".pyc", ".so", ".pth", ".pyi")
_NOT_DATA = ("/proc/", "/sys/", "/dev/")
_ENVIRON = type(os.environ)


@dataclass
class Reads:
    """Variables with their values, None for one that is not set; paths of files that were read and not written."""

    variables: dict[str, str | None] = field(default_factory=dict)
    _files: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)

    @property
    def files(self) -> list[Path]:
        found = {os.path.realpath(file) for file in self._files - self._written}
        return sorted(Path(file) for file in found if os.path.isfile(file) and _is_data(file))

    def opened(self, path: Any, flags: Any) -> None:
        if isinstance(path, bytes | os.PathLike | str) and isinstance(flags, int):
            reads = flags & (os.O_WRONLY | os.O_RDWR) == 0
            (self._files if reads else self._written).add(os.path.abspath(os.fsdecode(path)))


def _is_data(file: str) -> bool:
    return not file.endswith(_CODE) and not file.startswith(_NOT_DATA) and not is_installed(file)


@cache
def is_installed(file: str | None) -> bool:
    """Whether a file belongs to an installed package, to this one, or to Python's library."""
    if file is None:
        return False
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts or file.startswith((_LIBRARY, _OWN))


_LIBRARY, _OWN = (os.path.dirname(file) + os.sep for file in (os.__file__, __file__))
_FILES: list[Reads] = []
_HOOKED: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _FILES and event == "open":
        for reads in _FILES:
            reads.opened(arguments[0], arguments[2])


@contextmanager
def noted_files(reads: Reads) -> Iterator[None]:
    """Note the files that anybody opens inside."""
    if not _HOOKED:  # one hook for good, since none can be removed
        _HOOKED.append(True)
        sys.addaudithook(_audit)
    _FILES.append(reads)
    try:
        yield
    finally:
        _FILES.remove(reads)


@contextmanager
def noted_variables(reads: Reads) -> Iterator[None]:
    """Note the variables that code of no installed package reads inside."""
    known: Any = _ENVIRON.__getitem__

    def getitem(environ: Any, name: str) -> Any:
        if not is_installed(_reader()):
            reads.variables[name] = _value(name)
        return known(environ, name)

    with patch.object(_ENVIRON, "__getitem__", getitem):
        yield


def _value(name: str) -> str | None:
    data = os.environ._data.get(os.environ.encodekey(name))  # type: ignore[attr-defined]
    return None if data is None else os.fsdecode(data)


def _reader() -> str | None:
    """The file of the code that asked os.environ."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "collections.abc", __name__):
        frame = frame.f_back
    return frame.f_globals.get("__file__")
