"""Skips what needs a GPU where there is none, and starts the ranks that share it."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from soapstone.runtime.sharing import run_ranks, shared_gpu
from tests.support.training import train_plain
from tests.support.waiting import HANG

from .models import MODELS, batches

ROOT = Path(__file__).parents[2]
SEEDS = {2: 3, 4: 3, 8: 2}  # random strategies a model, by ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What became of each model and seed on so many ranks, which are started once."""

    @cache
    def run(ranks: int) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        wanted = {name: train_plain(make(), batches(name, make())) for name, make in MODELS.items()}
        torch.save(wanted, folder / "wanted.pt")
        command = [sys.executable, "-m", "tests.gpu.worker", str(folder), str(SEEDS[ranks])]
        with shared_gpu(ranks) as environments:
            statuses = run_ranks(command, [e | {"PYTHONPATH": python_path()} for e in environments], HANG)
        found: dict[str, str] = {}
        for rank in range(ranks):
            path = folder / f"rank{rank}.json"
            for case, error in json.loads(path.read_text() if path.exists() else "{}").items():
                found[case] = found.get(case) or (error and f"rank {rank}: {error}")
        if any(statuses):
            found["ranks"] = f"exit statuses {statuses} after {len(found)} cases"
        return found

    return run


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
