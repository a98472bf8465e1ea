"""Tables in narrow terminals: names are whole, and what matters least gives way."""

from __future__ import annotations

import pytest

from soapstone.cli.common import Listing, Terminal, bold, duration

NUMBERS = ("time", "moved", "search")


def shown(listing: Listing, width: int) -> list[str]:
    console = Terminal(width=width, file=None, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(listing.table(console))
    return captured.get().splitlines()


def listing() -> Listing:
    found = Listing(("approach", *NUMBERS, "what"), NUMBERS, wraps=("what",), optional=("search", "moved"))
    found.add_row(bold("soapstone"), "1,234.5 ms", "123 MB", "10.0 s", "one two three four five six seven eight")
    return found


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (100, ["approach", "time", "moved", "search", "what"]),
        (60, ["approach", "time", "moved", "what"]),
        (50, ["approach", "time", "what"]),
        (40, ["approach", "time", "what"]),
    ],
)
def test_optional_columns_give_way(width: int, headers: list[str]) -> None:
    lines = shown(listing(), width)
    assert lines[0].split() == headers
    assert "…" not in "".join(lines)
    assert "soapstone" in lines[1]


def test_short_times_can_be_told_apart() -> None:
    assert [duration(s) for s in (0.000258, 0.00325, 0.0451, 1.5)] == ["0.258 ms", "3.25 ms", "45.1 ms", "1,500.0 ms"]
