"""Commands as functions: what they print, and with which status they end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from soapstone.cli import main


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a refusal."""
        assert (self.status, self.out) == (2, "")
        return self.err.splitlines()[-1].removeprefix("soapstone: ")


Soapstone = Callable[..., Done]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def soapstone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, shared_cache: Path
) -> Soapstone:
    """Runs a command in a folder of the test's own; what one test captured, the next finds."""
    monkeypatch.setenv("SOAPSTONE_CACHE", str(shared_cache))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["soapstone", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return Done(int(stopped.value.code or 0), *capsys.readouterr())

    return run
