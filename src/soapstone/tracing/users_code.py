"""Where in the user's own code something happens, for sentences about it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from torch import fx

_OURS = Path(__file__).parents[1]
_TORCHS = Path(torch.__file__).parent


class Line:
    """A line of code that is neither torch's nor ours."""

    def __init__(self, frame: traceback.FrameSummary) -> None:
        self.code = (frame.line or "").strip()
        self._path, self._number = Path(frame.filename), frame.lineno

    def __str__(self) -> str:
        """As in `model.py, line 12: y = x[mask]`; of a file elsewhere its last few folders."""
        here = Path.cwd()
        path = self._path.relative_to(here) if self._path.is_relative_to(here) else Path(*self._path.parts[-3:])
        return f"{path}, line {self._number}" + (f": {self.code}" if self.code else "")


def line_of(error: TracebackType | None) -> Line | None:
    """The last one before an error."""
    return _last(traceback.extract_tb(error))


def line_here() -> Line | None:
    """The one that led here."""
    return _last(traceback.extract_stack())


def at(line: Line | None) -> str:
    """For the end of a clause."""
    return "" if line is None else f" ({line})"


def line_in(node: fx.Node) -> Line | None:
    """The one that made a node of torch.export's."""
    found = re.findall(r'File "(.+)", line (\d+), in (.+)\n(.*)', node.meta.get("stack_trace") or "")
    return _last([traceback.FrameSummary(file, int(at), name, line=code.strip()) for file, at, name, code in found])


def _last(frames: Sequence[traceback.FrameSummary]) -> Line | None:
    users = [frame for frame in frames if _is_users(Path(frame.filename))]
    return Line(users[-1]) if users else None


def _is_users(path: Path) -> bool:
    return path.exists() and not path.is_relative_to(_OURS) and not path.is_relative_to(_TORCHS)
