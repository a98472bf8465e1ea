"""How often something is timed."""

from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

from soapstone.costs.measured.clocks import Sample
from soapstone.costs.measured.rounds import LEAST_ROUNDS, Pace, Timed, time_all


class Dial:
    """A clock that shows what it is told to, whatever is called."""

    most_calls = 1

    def __init__(self, device: Sequence[float], host: Sequence[float] = (0.0,)) -> None:
        self._device, self._host = cycle(device), cycle(host)

    def sample(self, call: Callable[[], object], count: int) -> Sample:
        return Sample(next(self._device), next(self._host))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ([1000.0, 1010.0, 1020.0], LEAST_ROUNDS),  # it repeats itself
        ([1000.0, 1100.0, 1200.0], 11),
        ([1e8, 2e8, 3e8], LEAST_ROUNDS),  # it takes long
    ],
)
def test_what_repeats_itself_or_takes_long_has_few_rounds(device: list[float], expected: int) -> None:
    timed = Timed(lambda: None)
    time_all([timed], Pace(11), Dial(device))
    assert len(timed.samples) == expected


def test_a_host_must_repeat_itself_too() -> None:
    timed = Timed(lambda: None)
    time_all([timed], Pace(11), Dial([1000.0], host=[10.0, 20.0, 30.0]))
    assert (len(timed.samples), timed.host) == (11, 20.0)
