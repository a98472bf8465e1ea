"""The documentation builds as a site without a warning, and its references leave nothing out."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import soapstone as ss
from docs.commands import commands

ROOT = Path(__file__).parents[2]
BUILDS = pytest.mark.skipif(
    not all(map(find_spec, ("mkdocs", "material", "mkdocstrings"))), reason="the site's tools are not here: make docs"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@BUILDS
def test_every_command_has_its_section_and_options(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    found = dict(commands())
    assert {"search", "train"} <= found.keys()
    missing = [name for name in found if f'<h2 id="{name.replace(" ", "-")}">' not in page]
    missing += [
        option
        for command in found.values()
        for p in command.params
        for option in p.opts
        if option[0] == "-" and option not in page
    ]
    assert not missing


@BUILDS
def test_every_public_name_is_documented(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert not [name for name in ss.__all__ if f'id="soapstone.{name}"' not in page]


@BUILDS
def test_pictures_are_left_to_mermaid(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<pre class="mermaid"><code>flowchart', page)
