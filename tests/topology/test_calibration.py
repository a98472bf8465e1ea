"""Numbers that are measured until they repeat themselves, and the curves that they make."""

import itertools
from collections.abc import Iterator

import pytest

from soapstone.runtime.calibration.calibrator import _groups, _growing
from soapstone.runtime.calibration.passes import LEAST, MOST, Measure, measured


def counted(values: Iterator[float], seen: list[float]) -> Measure:
    def act() -> dict[str, float]:
        seen.append(next(values))
        return {"it": seen[-1]}

    return Measure(act)


def test_what_repeats_itself_is_measured_a_few_times() -> None:
    seen: list[float] = []
    numbers = measured({"it": counted(itertools.cycle([1.0, 1.1, 0.9]), seen)}, lambda share, what: None)
    assert (len(seen), numbers["it"], numbers.unsure) == (LEAST, 1.0, [])


def test_one_bad_pass_is_measured_again_and_outvoted() -> None:
    seen: list[float] = []
    values = itertools.chain([1.0, 20.0], itertools.repeat(1.05))
    numbers = measured({"it": counted(values, seen)}, lambda share, what: None)
    assert LEAST < len(seen) < MOST
    assert (numbers["it"], numbers.unsure) == (1.05, [])


def test_what_never_repeats_itself_is_unsure() -> None:
    seen: list[float] = []
    numbers = measured(
        {"it": counted(itertools.cycle([1.0, 2.0, 4.0]), seen), "that": Measure(lambda: {"that": 1.0})},
        lambda share, what: None,
    )
    assert (len(seen), numbers.unsure, len(numbers.samples["that"])) == (MOST, ["it"], LEAST)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 4, 2], [1, 3, 3]),
        ([9, 1, 2], [4, 4, 4]),
        ([5, 5, 6], [5, 5, 6]),
    ],
)
def test_a_curve_grows(seconds: list[float], expected: list[int]) -> None:
    found = _growing({size: ns * 1e-9 for size, ns in zip((10, 20, 30), seconds)})
    assert found == tuple(zip((10, 20, 30), expected))


def test_sums_are_measured_inside_nodes_across_them_and_among_all() -> None:
    assert _groups([0, 0]) == [(0, 1)]
    assert _groups([0] * 6) == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
    assert _groups([0, 0, 1, 1]) == [(0, 1), (0, 2), (0, 1, 2, 3)]
