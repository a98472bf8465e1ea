"""A sample of what `python -m benchmarks.fuzz` tries."""

from __future__ import annotations

import pytest

from benchmarks.fuzz.__main__ import SUBJECTS
from benchmarks.fuzz.tally import HARMLESS, SILENT, Tally
from tests.support.seeds import seeds

COUNT, COUNTS = 30, {"checkpoints": 200}


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("seed", seeds(1, 10))
def test_damage_is_refused_or_harmless(subject: str, seed: int) -> None:
    count = COUNTS.get(subject, COUNT)
    tally = SUBJECTS[subject](count, seed + 1)
    assert tally.failures == []
    assert tally.tried >= count
    assert tally.counts["none", HARMLESS] == tally.tried - count, "what is not damaged must be read"


def test_what_is_silently_wrong_fails() -> None:
    tally = Tally()
    tally.add("a bit", HARMLESS)
    assert tally.is_good
    tally.add("a bit", SILENT, "bit 3 of byte 5")
    assert not tally.is_good
    assert "bit 3 of byte 5" in tally.failures[0]
    assert tally.table("bits").row_count == 2
