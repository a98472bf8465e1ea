"""What every command has: help with examples, --quiet, --json, completion; and the version."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import soapstone as ss
from soapstone.cli import COMMANDS, app, completion
from soapstone.cli.examples import EXAMPLES
from tests.cli.conftest import Soapstone

SMALL = ("lenet", "--batch", "8", "-t", "p100:1x2")


def test_there_is_one_version(soapstone: Soapstone) -> None:
    assert ss.__version__ == metadata.version("soapstone")
    assert soapstone("--version").out == f"soapstone {ss.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long, short = soapstone(name, "--help"), soapstone(name, "-h")
    assert long == short
    assert "Examples:" in long.out
    assert "--quiet" in long.out
    assert "--json" in long.out
    assert all(len(line) <= 80 for line in long.out.splitlines())


EVERY_EXAMPLE = [(name, line) for name, lines in EXAMPLES.items() for line in lines]


@pytest.mark.parametrize(("name", "line"), EVERY_EXAMPLE, ids=[line for _, line in EVERY_EXAMPLE])
def test_the_examples_are_understood(name: str, line: str) -> None:
    group: Any = get_command(app)
    words = shlex.split(line)
    words = words[words.index("soapstone") + 1 :]
    assert words[0] == name
    group.commands[name].make_context(name, words[1:])  # parses, and runs nothing


def test_the_help_says_what_the_exit_status_means(soapstone: Soapstone) -> None:
    done = soapstone("--help")
    assert done == soapstone()
    assert all(re.search(rf"^ +{status}  ", done.out, re.MULTILINE) for status in (0, 1, 2, 130))


@pytest.mark.parametrize("words", [("-q", "search", *SMALL), ("search", *SMALL, "-q"), ("compare", *SMALL, "--quiet")])
def test_quiet_leaves_results_and_errors(words: tuple[str, ...], soapstone: Soapstone) -> None:
    done = soapstone(*words, "--proposals", "50", "--fresh")
    assert (done.status, done.err) == (0, "")
    assert "approach" in done.out
    assert soapstone(*words, "--budget", "0").complaint.startswith("--budget takes")
    assert soapstone("simulate", *SMALL, "--fresh").err != ""  # it was for one command


def test_no_color_is_honoured(soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    colours = re.compile(r"\x1b\[(?:\d+;)*[34]\d")
    assert colours.search(soapstone("show", "lenet").out)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(soapstone("show", "lenet").out)


def test_names_and_files_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here.yaml", "nmt.json", "model.py", ".hidden.py"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.json").touch()
    assert completion.models("le") == ["lenet"]
    assert completion.models("mo") == ["model.py"]
    assert completion.models("") == [*ss.zoo.names(), "model.py", "sub/"]
    assert completion.topologies("h") == ["here", "h100:", "h200:", "here.yaml"]
    assert completion.topologies("h100:1x4+a") == ["h100:1x4+a100:"]
    assert completion.strategies("sub/") == ["sub/deep.json"]
    assert completion.strategies("nowhere/") == []
    assert completion.strategies("da") == ["data"]


def test_the_shell_completes() -> None:
    words = {"_SOAPSTONE_COMPLETE": "complete_bash", "COMP_WORDS": "soapstone simulate le", "COMP_CWORD": "2"}
    program = "import sys; sys.argv = ['soapstone']; from soapstone.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **words}, capture_output=True, text=True)
    assert done.stdout.split() == ["lenet"]


def test_ranks_speaks_to_machines(soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("soapstone.runtime.sharing.shared_gpu", lambda count, _: nullcontext([{}] * count))
    monkeypatch.setattr("soapstone.runtime.sharing.run_ranks", lambda _, environments: [0 for _ in environments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert json.loads(soapstone("ranks", "2", "--json", "--", "true").out) == {"statuses": [0, 0]}


@pytest.mark.parametrize("shape", ["0", "2x", "2x2x2", "9999x9999", "513", "300x2"])
def test_ranks_that_no_machine_can_run_are_refused(shape: str, soapstone: Soapstone) -> None:
    done = soapstone("ranks", shape, "--", "true")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "NODESxRANKS" in done.err or "512 or fewer" in done.err
