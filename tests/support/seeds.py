"""How many random cases a test has: a few in `make test`, more in `make test-long`."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(few: int, most: int) -> list[Any]:
    """The first few, and the others marked as long."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, most))]
