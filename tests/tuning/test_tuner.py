"""Tuning on ranks that are threads of one process: without DistributedDataParallel, and without measured costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import soapstone as ss
from soapstone.runtime import ThreadTransport
from soapstone.tuning import Standing, Tuned, contest, steps, tuner
from soapstone.tuning.candidates import Candidate, distinct, find_candidates
from tests.support.models import CASES, captured

TOPOLOGY = ss.Topology.parse("cpu:1x2")
TRAINING = ss.Training(optimizer="sgd")
FAST = {"budget": 0.3, "limit": 1000.0}


def tuned(change: Callable[[int], dict[str, object]] = lambda rank: {}) -> list[Tuned]:
    case = CASES["mlp"]
    graph = ss.capture(case.workload())

    def run(rank: int, transport: ThreadTransport) -> Tuned:
        given: dict[str, object] = {**FAST, "training": TRAINING, "transport": transport, **change(rank)}
        return ss.tune(case.workload(), graph, TOPOLOGY, **given)  # type: ignore[arg-type]

    return ss.run_threads(2, run)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.tuning.race.MOST_ROUNDS", 6)


def test_every_rank_gets_the_same_strategy_and_what_it_took() -> None:
    first, second = tuned()
    assert first.strategy == second.strategy
    assert (first.chosen, first.rows) == (second.chosen, second.rows)
    assert first.ended == "clear"
    assert first.strategy.predicted is not None
    assert first.strategy.measured is not None
    assert first.strategy.measured.ddp is None
    assert (first.against_ddp, first.keeps_promise) == (None, None)
    ran = [row for row in first.rows if row.measured is not None]
    assert {"data"} <= {row.name for row in ran}
    assert first.chosen == ran[0].name


def test_no_time_still_leaves_a_few_rounds() -> None:
    first, _ = tuned(lambda rank: {"limit": 1e-3})
    assert first.ended == "time"
    assert first.strategy.measured is not None
    assert first.strategy.measured.rounds <= contest.LEAST_ROUNDS


def test_a_candidate_that_one_rank_cannot_make_is_dropped_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = steps.our_step

    def broken(work: Any, graph: Any, strategy: ss.Strategy, *, transport: Any, **more: Any) -> Any:
        failing = strategy == ss.baselines.data_parallel(strategy.graph, TOPOLOGY) and transport.rank == 1
        more["training"] = ss.Training(optimizer="sgd", bucket_bytes=2**30 if failing else 0)  # a plan of its own
        return real(work, graph, strategy, transport=transport, **more)

    monkeypatch.setattr(tuner, "our_step", broken)
    first, second = tuned()
    assert first.rows == second.rows
    (data,) = [row for row in first.rows if row.name == "data"]
    assert data.measured is None
    assert "disagree on the plan" in data.note
    assert first.chosen != "data"


def test_a_rank_that_fails_in_a_step_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    real = contest.Contest._round

    def dying(self: contest.Contest, race: object) -> None:
        if self.race is not None and self.race.num_rounds == 2:
            raise RuntimeError("out of memory")
        real(self, race)  # type: ignore[arg-type]

    monkeypatch.setattr(contest.Contest, "_round", dying)
    first, _ = tuned()
    assert first.failure == "out of memory"
    assert first.strategy.measured is not None
    assert first.strategy.measured.rounds == 2


def test_contestants_that_do_not_fit_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "ROOM", 0.0)
    first, _ = tuned(lambda rank: {"limit": 3.0})
    assert first.strategy.measured is not None


def test_what_was_the_best_before_races_and_is_searched_from() -> None:
    graph = ss.capture(CASES["mlp"].workload())
    before = ss.baselines.random(graph, TOPOLOGY, seed=3)
    heard: list[Standing] = []
    first, _ = tuned(lambda rank: {"initial": [before], "progress": heard.append} if rank == 0 else {})
    assert "before" in {row.name for row in first.rows}
    assert {"Racing", "Warming up data"} <= {standing.what for standing in heard}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget": 0}, "budget=0 is not a number of seconds"),
        ({"limit": float("nan")}, "limit=nan is not a number of seconds"),
        ({"training": ss.Training(optimizer="lion")}, "optimizer 'lion' is not known"),
        ({"training": 3}, "training=3"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ss.SoapstoneError, match=sentence):
        tuned(lambda rank: change)


def test_candidates_differ_and_data_parallelism_comes_first() -> None:
    graph = ss.capture(CASES["mlp"].workload())
    found, stopped = find_candidates(graph, TOPOLOGY, training=TRAINING, budget=0.3, seed=0)
    assert not stopped
    assert found[0].name == "data"
    assert len({candidate.name for candidate in found}) == len(found)
    again = [Candidate.unpacked(graph, TOPOLOGY, candidate.packed()) for candidate in found]
    assert again == found
    assert distinct([*found, *again]) == found


def test_microbatches_reach_the_other_ranks() -> None:
    graph = captured("gpt")
    strategy = ss.baselines.grid(graph, TOPOLOGY, (1, 1, TOPOLOGY.num_devices), 2)
    again = Candidate.unpacked(graph, TOPOLOGY, Candidate("pipeline", strategy, 1.0, (1, 1)).packed())
    assert again.strategy == strategy
    assert again.strategy.microbatches == 2
