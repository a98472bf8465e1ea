"""Every relative link and every path in the documentation leads somewhere, and no design page is too long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PLACE = re.compile(r"`((?:tests|cpp|benchmarks|examples|docs)/[\w/.*-]+)`")
STAND_INS = ("NAME", "FOLDER", "FAMILY")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 90


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_paths_resolve(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    lost = [target for target in targets if target and not (page.parent / target).exists()]
    places = [place for place in PLACE.findall(text) if not any(word in place for word in STAND_INS)]
    lost += [place for place in places if not list(ROOT.glob(place))]
    assert not lost


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "design").glob("*.md")), ids=name)
def test_design_pages_have_a_picture(page: Path) -> None:
    assert "```mermaid" in page.read_text(encoding="utf-8")


def test_the_readme_fits_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
