"""Curves in a terminal."""

from soapstone.cli.braille import drawn


def test_a_curve_falls_from_the_top_left_to_the_bottom_right() -> None:
    lines = drawn([(0.0, 1.0), (5.0, 0.0), (10.0, 0.0)], 5, 2, 10.0, 1.0)
    assert [len(line) for line in lines] == [5, 5]
    assert lines[0].startswith("⠉⠉")
    assert lines[1].endswith("⣀⣀")
    assert lines[0].endswith("⠀⠀")


def test_it_is_drawn_as_far_as_it_is_known() -> None:
    (line,) = drawn([(0.0, 1.0), (5.0, 1.0)], 4, 1, 10.0, 1.0)
    assert line[:2] == "⠉⠉"
    assert line[3] == "⠀"


def test_values_outside_stay_at_the_edge() -> None:
    assert drawn([(0.0, 9.0), (1.0, 9.0)], 1, 1, 1.0, 1.0) == ["⠉"]
    assert drawn([], 2, 1, 1.0, 1.0) == ["⠀⠀"]
