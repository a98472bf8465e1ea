"""Names from files are printed as text: without escape codes, markup or characters that cannot be printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

import soapstone as ss
from soapstone.cli.common import Listing, Terminal, print_all
from soapstone.errors import SoapstoneError, printable
from tests.cli.conftest import Done, Soapstone

HOSTILE = "\x1b[31m\x9b2J\x07\u202e[/x][red]\udcff"
MODEL = f"""
import soapstone as ss
from torch import nn
import torch
import torch.nn.functional as F

def make():
    model = nn.Sequential()
    model.add_module({HOSTILE!r}, nn.Linear(16, 16))
    model.add_module("b" + {HOSTILE!r}, nn.Linear(16, 4))
    return ss.Workload(model, (torch.ones(8, 16),), loss=F.cross_entropy, targets=(torch.zeros(8, dtype=torch.long),))
"""
NAME = f"m{HOSTILE.replace('/', '')}.py"


def assert_plain(done: Done, status: int = 0) -> None:
    said = done.out + done.err
    assert done.status == status, said
    assert printable(said) == said
    said.encode()


@pytest.fixture
def files(soapstone: Soapstone) -> Soapstone:
    """A model, a topology and two strategies, all with hostile names."""
    topology = ss.Topology.parse("p100:1x2")
    Path(NAME).write_text(MODEL)
    topology.save(f"t{NAME}.yaml")
    return soapstone


def test_commands_print_hostile_names_as_text(files: Soapstone) -> None:
    case = (f"{NAME}:make", "-t", f"t{NAME}.yaml")
    for words in (
        ("show", case[0]),
        ("simulate", *case),
        ("compare", *case, "--methods", "data,expert"),
        ("search", *case, "--budget", "1", "-o", f"s{NAME}.json"),
        ("simulate", *case, "-s", f"s{NAME}.json"),
        ("explain", f"s{NAME}.json"),
        ("cache",),
    ):
        assert_plain(files(*words))


@pytest.mark.parametrize(
    "words",
    [
        (HOSTILE,),
        ("show", f"{HOSTILE}:make"),
        ("show", f"{HOSTILE}.py:make"),
        ("show", f"{NAME}:{HOSTILE}"),
        ("show", f"{NAME}:mak"),
        ("show", "lenet", "--size", f"{HOSTILE}=3"),
        ("show", "lenet", "--precision", HOSTILE),
        ("show", "lenet", f"--{HOSTILE}"),
        ("simulate", "lenet", "-t", HOSTILE),
        ("simulate", "lenet", "-t", f"{HOSTILE}.yaml"),
        ("simulate", "lenet", "-t", "p100:1x2", "-s", HOSTILE),
        ("simulate", "lenet", "-t", "p100:1x2", "-s", "odd.json"),
        ("simulate", "lenet", "-t", "odd.yaml"),
        ("simulate", "lenet", "-t", "p100:1x2", "--batch", HOSTILE),
        ("calibrate", "-o", f"no-folder/{HOSTILE}"),
        ("ranks", "2", "--", HOSTILE),
    ],
    ids=repr,
)
def test_complaints_are_plain(words: tuple[str, ...], files: Soapstone) -> None:
    Path("odd.json").write_text(json.dumps({"kind": "soapstone strategy", "format": 2, HOSTILE: 1}))
    Path("odd.yaml").write_text(json.dumps({"devices": [], HOSTILE: 1}))
    assert_plain(files(*words), 2)


def test_an_error_is_plain_in_python_too() -> None:
    assert str(SoapstoneError(f"a{HOSTILE}\nb\tc")) == "a␛[31m�2J␇�[/x][red]�\nb\tc"


def test_a_terminal_keeps_its_own_codes_and_no_others() -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system="standard", width=200)
    terminal.print(Text(f"x{HOSTILE}", style="red"))
    table = Table(HOSTILE.replace("[", r"\["))
    table.add_row(Text("cell\x1b[5m"))
    terminal.print(table)
    assert file.getvalue().startswith("\x1b[31mx␛[31m")
    assert "\x1b[5m" not in file.getvalue()
    assert isinstance(terminal, Console)


def test_text_of_a_cell_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = Listing(("name",))
    table.add_row(Text("[/x][red]"))
    print_all(table)
    assert "[/x][red]" in capsys.readouterr().out
