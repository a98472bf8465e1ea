"""Which checkpoints a run goes on from without being told."""

from __future__ import annotations

from pathlib import Path

import pytest

import soapstone as ss
from soapstone.cli.elastic import begin, check_own


def attempt(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun's restart of this number does in a folder with checkpoints."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
    check_own(folder)


def test_a_restart_goes_on_only_where_the_run_had_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        with pytest.raises(ss.SoapstoneError, match="has checkpoints already; add --resume"):
            attempt(number, tmp_path, monkeypatch)
    begin(tmp_path)  # which is when the folder had no checkpoint
    attempt(1, tmp_path, monkeypatch)
    with pytest.raises(ss.SoapstoneError, match="has checkpoints already"):
        attempt(0, tmp_path, monkeypatch)
