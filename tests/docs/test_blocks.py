"""Every code block of the documentation runs. Those that cannot run here are listed as skipped, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soapstone.cli import arguments, profile
from soapstone.runtime.calibration import meter, passes, programs
from tests.support.seeds import cases

from .blocks import FENCE, ROOT, Page, blocks_of, commands_of, smaller

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: blocks_of(page.read_text(encoding="utf-8")) for page in PAGES}
RUN = [p for p, blocks in BLOCKS.items() if any(b.language in ("python", "sh") and b.reason is None for b in blocks)]
LONG = [ROOT / "docs" / "tuning.md"]
NOT_RUN = [(page, block) for page, blocks in BLOCKS.items() for block in blocks if block.reason is not None]
COMMAND = re.compile(r"^ {4}(\$ )?(\S*=\S+ )?(\.venv/\S+|soapstone|torchrun|python|make|pip|git)\b", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "SOAPSTONE_CACHE", str(tmp_path_factory.getbasetemp() / "cache")
    )  # pages share what they capture
    # Measurements are short, and beside nobody: what they come to does not matter here.
    monkeypatch.setattr(meter, "rounds_of", lambda size: 3)
    monkeypatch.setattr(meter, "WARM", 1)
    monkeypatch.setattr(programs, "ROUNDS", 4)
    monkeypatch.setattr(passes, "LEAST", 1)
    monkeypatch.setattr(passes, "MOST", 1)
    for module in (arguments, profile):
        monkeypatch.setattr(module, "neighbours_of", lambda topology: 0)
    return tmp_path


@pytest.mark.parametrize("page", cases(RUN, long=LONG), ids=name)
def test_the_blocks_of_a_page_run(page: Path, folder: Path) -> None:
    reader = Page(name(page))
    for block in BLOCKS[page]:
        reader.run(block)


@pytest.mark.parametrize(("page", "block"), NOT_RUN, ids=lambda x: name(x) if isinstance(x, Path) else str(x.line))
def test_what_is_not_run_says_why(page: Path, block: object) -> None:
    pytest.skip(f"{name(page)}, line {block.line}: {block.reason}")  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_stand_in_fences_and_files_are_used(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not COMMAND.findall(FENCE.sub("", text)), "put it between ```sh and ```, so that it is run"
    files = [block.title for block in BLOCKS[page] if block.title is not None]
    commands = "".join(block.text for block in BLOCKS[page] if block.language == "sh")
    assert not [file for file in files if file not in commands]


def test_every_example_is_run() -> None:
    """Those of the demo are what `make demo` and its own page run."""
    run = "".join(block.text for blocks in BLOCKS.values() for block in blocks if block.language == "sh")
    demo = {"demo.py", "digits.py", "train_digits.py"}
    scripts = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh")} - demo
    assert scripts
    assert not [name for name in scripts if f"examples/{name}" not in run]


def test_a_block_that_fails_is_found(folder: Path) -> None:
    for text in ("```python\n1 / 0\n```\n", "```sh\nsoapstone show nosuchmodel\n```\n", "```sh\nrm x\n```\n"):
        (block,) = blocks_of(text)
        with pytest.raises((ZeroDivisionError, AssertionError)):
            Page("a page").run(block)


def test_commands_are_made_small() -> None:
    (words,) = commands_of("soapstone search lenet -t h100:1x2 \\\n  --batch-per-device 8  # a remark\n")
    assert smaller(words[1:]) == [
        "search",
        "lenet",
        "-t",
        "h100:1x2",
        "--batch",
        "8",
        "--proposals",
        "50",
        "--budget",
        "3",
    ]
