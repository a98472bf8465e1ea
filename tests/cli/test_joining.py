"""Commands that need ranks check their options and torchrun's variables before the ranks join."""

from __future__ import annotations

from typing import Any

import pytest

from soapstone.cli.claiming import restarts
from soapstone.cli.elastic import with_fewer_ranks
from tests.cli.conftest import Soapstone


@pytest.mark.parametrize(
    "command", [("train", "lenet", "--batch", "8", "-t", "cpu:1x1"), ("calibrate",), ("tune", "lenet")]
)
def test_the_commands_take_an_interface(
    command: tuple[str, ...],
    soapstone: Soapstone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "'eth7' does not exist" in soapstone(*command, "--interface", "eth7").err


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize(
    "value", ["9" * 5000, "-1", "one", "٣", "\x1b[31m"], ids=["digits", "-1", "one", "arabic", "escape"]
)
def test_what_torchrun_sets_must_be_numbers(
    name: str,
    value: str,
    soapstone: Soapstone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("soapstone.cli.PATIENCE", 0)
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", name: value}
    for key, text in given.items():
        monkeypatch.setenv(key, text)
    complaint = soapstone("calibrate").complaint
    assert complaint.startswith(f"{name} is ")
    assert "not a number" in complaint
    assert complaint.isprintable()


def test_a_rank_is_below_their_number(soapstone: Soapstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soapstone.cli.PATIENCE", 0)
    for name, value in {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert soapstone("calibrate").complaint.startswith("RANK is 5, but WORLD_SIZE is 2")


def test_a_restart_count_and_a_number_of_ranks_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may use the names of these variables."""
    case: Any = None
    for text in ("9" * 5000, "many", ""):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", text)
        monkeypatch.setenv("WORLD_SIZE", text)
        assert restarts() == 0
        assert with_fewer_ranks(case) is case


@pytest.mark.parametrize("seconds", ["inf", "1e400", "9" * 5000, "9" * 18, "nan", "0"], ids=lambda text: text[:9])
def test_a_timeout_is_a_number_of_seconds(seconds: str, soapstone: Soapstone) -> None:
    complaint = soapstone("train", "lenet", "--batch", "8", "-t", "cpu:1x1", "--timeout", seconds).complaint
    assert complaint == "--timeout takes a number from 1 to 864000; write it as --timeout 8"
