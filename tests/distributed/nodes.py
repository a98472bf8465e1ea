"""Nodes made on this machine: whether it can make them, and commands that run on them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from soapstone.errors import RankError
from soapstone.runtime.sharing import made_nodes

ROOT = Path(__file__).parents[2]
TIMEOUT = 100


@cache
def why_not() -> str:
    """Why this machine cannot make nodes; empty if it can."""
    try:
        with made_nodes(1, gbit=1):
            return ""
    except (RankError, OSError) as error:
        return str(error)


needs_nodes = pytest.mark.skipif(bool(why_not()), reason=f"no nodes can be made here: {why_not()}")


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SOAPSTONE_CACHE": str(folder / "cache")}


def on_nodes(
    folder: Path, shape: str, *command: str, gbit: float = 8, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a module or a script on each rank: `on_nodes(folder, "2x2", "soapstone", "calibrate")`."""
    launcher = [sys.executable, "-m", "soapstone", "ranks", shape, "--gbit", str(gbit), *options, "--", sys.executable]
    program = command if command[0].endswith(".py") else ("-m", *command)
    return subprocess.run(
        [*launcher, *program], env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT
    )
