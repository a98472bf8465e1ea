"""When what a rank has can go."""

from __future__ import annotations

from soapstone.runtime.liveness import ended_sums
from soapstone.runtime.plan import Event, Run, Sync


def scatter(row: int) -> Sync:
    return Sync(row, ((0, 0),), (0, 1), True)


def test_sums_that_have_ended_are_taken_before_the_run_that_begins_then() -> None:
    """The second sum ends with the third, and the fourth when no run is left."""
    ends = {0: 2.5, 1: 6.0, 2: 6.0, 3: 9.0}
    program: list[Event] = [
        Run(0, True),
        scatter(0),
        Run(1, True),
        Run(2, True),
        scatter(1),
        Sync(9, (), (0, 1), False),
        scatter(2),
    ]
    program += [Run(3, True), Run(4, True), scatter(3), Run(5, False)]
    starts = {0: 0.0, 1: 2.0, 2: 3.0, 3: 5.0, 4: 6.0, 5: 8.0}
    found = ended_sums(program, lambda run: starts[run.segment], lambda sync: ends[sync.row])
    assert found == {3: 1, 8: 3}
