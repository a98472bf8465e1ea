"""When what a rank has can go."""

from __future__ import annotations

from soapstone.runtime.keys import Payload, Received, Share, Total
from soapstone.runtime.liveness import ended_sums, last_uses
from soapstone.runtime.plan import Combine, Event, Receive, Round, Run, Send, Sync
from soapstone.runtime.segments import Segment


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


def test_what_went_to_others_goes_at_once_and_what_came_stays_for_its_gradient() -> None:
    segments = [Segment(0, gives=[Share(3, 0), Payload(0)]), Segment(0, takes=[Total(3, 0), Received(1)])]
    program: list[Event] = [
        Run(0, False),
        Combine(0, 3, 0, (0, 1), False),
        Round(0, (Send(1, 0, 1, False),), (Receive(2, 1, 1, False),)),
        Run(1, False),
        Run(1, True),
        Combine(3, 3, 0, (0, 1), True),
        Round(1, (Send(4, 1, 1, True),), (Receive(5, 0, 1, True),)),
        Run(0, True),
    ]
    gone = {key: number for number, keys in last_uses(program, segments, (), loss=9).items() for _, key in keys}
    assert gone == {Share(3, 0): 1, Payload(0): 2, Received(1): 6, Total(3, 0): 7}
    loss = {key: number for number, keys in last_uses(program, segments, (), loss=3).items() for _, key in keys}
    assert loss[Share(3, 0)] == 7
