"""Who is faster, from made-up rounds: noise that slows all turns of a round decides nothing."""

from __future__ import annotations

import random

import pytest

from soapstone.tuning import race as module
from soapstone.tuning.race import Race, ratio_of

TIMES = {"data": 0.95, "searched": 0.9, "model": 1.5, "DDP": 1.0}


def run(times: dict[str, float], seed: int = 0, noise: float = 0.02) -> Race:
    """Rounds until it is clear; each has a common slowness, and every turn some of its own."""
    draw = random.Random(seed)
    race = Race([name for name in times if name != "DDP"], "DDP", 1.03)
    while not race.is_clear:
        slow = draw.choice([1.0, 1.0, 1.0, 3.0])
        race.add({name: times[name] * slow * draw.uniform(1, 1 + noise) for name in race.alive})
    return race


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_wins_and_the_slow_ones_wait(seed: int) -> None:
    race = run(TIMES, seed)
    assert race.leader == "searched"
    assert race.against("searched", "DDP").value == pytest.approx(0.9, rel=0.02)
    assert race.rounds("model") < race.rounds("data") <= race.rounds("searched")
    assert race.rounds("DDP") == race.num_rounds


def test_a_tie_ends() -> None:
    race = run({"data": 1.0, "searched": 1.0, "DDP": 1.0}, noise=0.005)
    assert module.TIE_ROUNDS <= race.num_rounds < module.MOST_ROUNDS
    assert race.against(race.leader, "DDP").value <= 1.03


def test_who_was_out_by_bad_luck_comes_back() -> None:
    race = Race(["good", "lucky"], "DDP")
    for _ in range(module.FIRST_LOOK):
        race.add({"good": 2.0, "lucky": 1.0, "DDP": 1.0})
    assert race.alive == ["lucky", "DDP"]
    while not race.is_clear:
        race.add({name: {"good": 1.2, "lucky": 3.0, "DDP": 1.0}[name] for name in race.alive})
    assert race.leader == "good"


def test_without_ddp_the_first_is_what_others_are_held_against() -> None:
    race = Race(["data", "searched"], "data")
    for _ in range(module.ENOUGH):
        race.add({name: {"data": 2.0, "searched": 1.0}[name] for name in race.alive})
    assert (race.leader, race.is_clear) == ("searched", True)
    assert race.against("searched", "data").value == 0.5


def test_an_interval_holds_the_median_and_narrows() -> None:
    draw = random.Random(0)
    few, many = (ratio_of([draw.uniform(1, 1.2) for _ in range(n)], [1.0] * n) for n in (8, 80))
    for found in (few, many):
        assert found.low <= found.value <= found.high
    assert many.high - many.low < few.high - few.low
    assert str(ratio_of([1.0], [2.0])) == "0.500x [0.500, 0.500]"
