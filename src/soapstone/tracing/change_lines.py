"""Finds the line of the user's code that changes a place: runs line by line, and looks at the place after each."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .observe import is_users
from .pystate import Change, described, same
from .users_code import Line

OUTSIDE = "compute it outside of the model, and pass it as an input"


def changing(change: Change, line: Line | None) -> str:
    """The message about state that every call changes."""
    if isinstance(change.now, torch.Tensor):
        return f"the model sets {described(change.path)} anew in its forward{_at(line)}; keep such state outside"
    return (
        f"the model changes {described(change.path)} in its forward{_at(line)}, but a captured graph would always "
        f"use its value at the capture; {OUTSIDE}"
    )


def settling(change: Change, line: Line | None) -> str:
    """The message about state that the first call sets, if later calls compute something else because of it."""
    return (
        f"the model sets {described(change.path)} in its first forward{_at(line)} and computes something else in later "
        "ones, but a captured graph would always compute what the first does; set it before the capture"
    )


def _at(line: Line | None) -> str:
    return f" ({line})" if line else ""


def line_that_changes(change: Change, run: Callable[[], object]) -> Line | None:
    """Call `run`, and return the first line of the user's code after which the place has changed; None if there is
    none."""
    finder, before = _Finder(change), sys.gettrace()
    sys.settrace(finder.enter)
    try:
        run()
    except Exception:  # a second run may fail although the first did not; the line may be known by then
        pass
    finally:
        sys.settrace(before)
    return finder.line


class _Finder:
    def __init__(self, change: Change) -> None:
        self._change, self._before = change, change.shallow()
        self._at: tuple[FrameType, int] | None = None  # the line that is being executed
        self.line: Line | None = None

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._next if self.line is None and is_users(frame) else None

    def _next(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.line is None and self._at is not None and not same(self._before, self._change.shallow()):
            self.line = _line(*self._at)
        self._at = frame, frame.f_lineno
        caller = frame.f_back
        while event == "return" and caller is not None and not is_users(caller):
            caller = caller.f_back
        if event == "return" and caller is not None:
            self._at = caller, caller.f_lineno
        return self._next


def _line(frame: FrameType, number: int) -> Line:
    summary = traceback.FrameSummary(frame.f_code.co_filename, number, frame.f_code.co_name)
    return Line(summary)
