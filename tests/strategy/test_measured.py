"""What was measured, in a strategy's file: it comes back as it was, and nonsense is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from soapstone.strategy import Measured, arguments_in
from tests.support.models import CASES

TOPOLOGY = ss.Topology.parse("cpu:1x2")
MEASURED = Measured(0.05, 2, "cpu", "2026-01-31", 20, 0.06)


def saved(folder: Path) -> tuple[Path, ss.Strategy]:
    strategy = ss.baselines.data_parallel(ss.capture(CASES["mlp"].workload()), TOPOLOGY)
    strategy.predicted, strategy.measured = 0.04, MEASURED
    strategy.save(folder / "s.json", {"model": "mlp"})
    return folder / "s.json", strategy


def test_it_comes_back(tmp_path: Path) -> None:
    path, strategy = saved(tmp_path)
    again = ss.Strategy.load(path, strategy.graph, TOPOLOGY)
    assert (again, again.predicted, again.measured) == (strategy, 0.04, MEASURED)
    assert arguments_in(path) == {"model": "mlp"}
    assert MEASURED.against_ddp == pytest.approx(5 / 6)
    assert "0.83x of DistributedDataParallel's" in str(MEASURED)


def test_it_does_not_count_for_another_topology(tmp_path: Path) -> None:
    path, strategy = saved(tmp_path)
    again = ss.Strategy.load(path, strategy.graph, ss.Topology.parse("p100:1x2"))
    assert again.notes
    assert (again.predicted, again.measured) == (None, None)
    assert strategy.replace({}).measured is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("predicted", -1),
        ("predicted", "soon"),
        ("predicted", 10**400),
        ("predicted", float("nan")),
        ("predicted", True),
        ("measured", []),
        ("measured", {}),
        ("measured", {"seconds": 1.0, "ranks": 2, "device": "cpu", "date": "2026-01-31", "more": 1}),
        ("measured", {"seconds": 10**400, "ranks": 2, "device": "cpu", "date": "2026-01-31"}),
        ("measured", {"seconds": float("inf"), "ranks": 2, "device": "cpu", "date": "2026-01-31"}),
        ("measured", {"seconds": 1.0, "ranks": 0, "device": "cpu", "date": "2026-01-31"}),
        ("measured", {"seconds": 1.0, "ranks": 2, "device": "cpu\x1b[31m", "date": "2026-01-31"}),
        ("measured", {"seconds": 1.0, "ranks": 2, "device": "c" * 10**6, "date": "2026-01-31"}),
        ("measured", {"seconds": 1.0, "ranks": 2, "device": "cpu", "date": "yesterday"}),
        ("measured", {"seconds": 1.0, "ranks": 2, "device": "cpu", "date": "2026-01-31", "ddp": 0}),
    ],
)
def test_nonsense_is_refused_in_a_sentence(key: str, value: Any, tmp_path: Path) -> None:
    path, strategy = saved(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for read in (lambda: arguments_in(path), lambda: ss.Strategy.load(path, strategy.graph, TOPOLOGY)):
        with pytest.raises(ss.SoapstoneError, match=key) as error:
            read()
        assert len(str(error.value)) < 400
