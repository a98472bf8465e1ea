"""How many cases a test has: a few in `make test`, more in `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def seeds(few: int, most: int) -> list[Any]:
    """The first few, and the others marked as long."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, most))]


def cases(names: Iterable[T], *, long: Iterable[T]) -> list[Any]:
    """All of them, some of them marked as long."""
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]
