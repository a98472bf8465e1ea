"""Any strategy trains like one device on NCCL ranks that share a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.models import CASES

from .conftest import SEEDS
from .models import MODELS


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", SEEDS)
def test_random_strategies_train_like_one_device(
    ranks: int, name: str, outcomes: Callable[[int], dict[str, str]]
) -> None:
    found = outcomes(ranks)
    for seed in range(SEEDS[ranks]):
        error = found.get(f"{name} {seed}", f"was never reached: {found.get('ranks')}")
        assert not error, f"seed {seed}: {error}"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", SEEDS)
@pytest.mark.parametrize("case", ["clipped", "microbatches", "other shapes", "graphed", "graphed whole"])
def test_clipping_evaluation_microbatches_shapes_and_cuda_graphs_equal_plain_torch(
    case: str, ranks: int, name: str, outcomes: Callable[[int], dict[str, str]]
) -> None:
    found = outcomes(ranks)
    error = found.get(f"{name} {case}", f"was never reached: {found.get('ranks')}")
    assert not error, error


@pytest.mark.parametrize("ranks", SEEDS)
def test_the_ranks_end_by_themselves(ranks: int, outcomes: Callable[[int], dict[str, str]]) -> None:
    assert not outcomes(ranks).get("ranks")
