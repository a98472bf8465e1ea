"""Run the doctests in the documentation, and check the numbers of the design pages' examples."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(text: str) -> list[tuple[int, str]]:
    """The first line and the text of each fenced Python block that is a doctest."""
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


def run(name: str, text: str) -> list[str]:
    """What fails, in doctest's words. The blocks of a page share their names."""
    runner, said = doctest.DocTestRunner(), list[str]()
    names: dict[str, object] = {}
    for line, block in blocks_of(text):
        test = doctest.DocTestParser().get_doctest(block, names, name, name, line)
        runner.run(test, out=said.append, clear_globs=False)
        names = test.globs
    return said


WITH_EXAMPLES = [page for page in sorted(DOCS.rglob("*.md")) if blocks_of(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(DOCS)))
def test_examples_print_what_they_say(page: Path) -> None:
    said = run(page.name, page.read_text(encoding="utf-8"))
    assert not said, "\n".join(said)


def test_a_wrong_line_is_found() -> None:
    text = (DOCS / "tutorial-rules.md").read_text(encoding="utf-8")
    assert len(blocks_of(text)) > 12
    wrong = text.replace("[[((0, 2),), ((0, 6),)]]", "[[((0, 2),), ((0, 5),)]]")
    assert wrong != text
    assert "((0, 5),)" in "".join(run("tutorial-rules.md", wrong))
