"""Pictures are written whole, in the format that their names say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from soapstone.errors import SoapstoneError
from soapstone.report.plots import check_picture, plot_curves, plot_predictions, plot_scaling


def words(path: Path) -> str:
    """What an SVG says: matplotlib draws letters as paths and names them in comments."""
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    return text


def test_every_line_has_its_name(tmp_path: Path) -> None:
    plot_scaling(
        {"data": {1: 10.0, 2: 19.0, 4: 30.0}, "found": {1: 10.0, 2: 20.0, 4: 39.0}}, "Title", tmp_path / "a.svg"
    )
    plot_curves({"seed 0": [(0.1, 0.2), (3.0, 0.1)]}, "Title", tmp_path / "b.svg")
    plot_predictions([("lenet", 0.001, 0.002), ("nmt", 0.1, 0.09)], "Title", tmp_path / "c.svg")
    for name, expected in (("a", ("data", "found")), ("b", ("seed 0",)), ("c", ("lenet", "nmt", "equal"))):
        assert all(f"<!-- {word} -->" in words(tmp_path / f"{name}.svg") for word in (*expected, "Title"))


def test_a_png_is_one(tmp_path: Path) -> None:
    plot_curves({"x": [(1.0, 1.0)]}, "", tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG\r\n")


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    for name in ("plot.jpg", "plot", "no/such/folder.png"):
        with pytest.raises(SoapstoneError):
            check_picture(tmp_path / name)
