"""What a strategy took when it was really run, as its file keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any

from ..errors import SoapstoneError, StrategyError
from ..files import decode, encode, shortened

LONGEST = 1e6  # seconds of a step
MOST_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """The median seconds of a step on so many ranks, and those of DistributedDataParallel in the same rounds, where it
    ran. Raises StrategyError for anything else."""

    seconds: float
    ranks: int
    device: str
    date: str  # ISO 8601
    rounds: int = 0
    ddp: float | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "ddp"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(value, name)
        for name, least in (("ranks", 1), ("rounds", 0)):
            if not least <= getattr(self, name) < 2**31:
                raise StrategyError(f"{name!r} is {shortened(getattr(self, name))}, which is no count")
        for name in ("device", "date"):
            if len(text := getattr(self, name)) > MOST_CHARACTERS or not text.isprintable():
                raise StrategyError(f"{name!r} is {shortened(text)}, which is no name")
        try:
            datetime.fromisoformat(self.date)
        except ValueError:
            raise StrategyError(f"'date' is {shortened(self.date)}, which is none; write it as 2026-01-31") from None

    @property
    def against_ddp(self) -> float | None:
        """How much longer than DistributedDataParallel's its step takes: 0.5 is half as long."""
        return None if self.ddp is None else self.seconds / self.ddp

    def __str__(self) -> str:
        beside = "" if self.against_ddp is None else f", {self.against_ddp:.2f}x of DistributedDataParallel's"
        return f"{self.seconds * 1e3:.3g} ms a step on {self.ranks} ranks ({self.device}) on {self.date}{beside}"


def check_seconds(value: object, name: str) -> float:
    """Raise StrategyError unless a step may take that long."""
    if type(value) not in (int, float) or not 0 < value <= LONGEST or not isfinite(value):  # type: ignore[operator, arg-type]
        raise StrategyError(f"{name!r} is {shortened(value)}, which is no number of seconds")
    return float(value)  # type: ignore[arg-type]


def record_in(data: dict[str, Any], path: object) -> tuple[float | None, Measured | None]:
    """What a file's content says was predicted and measured. Raises StrategyError."""
    predicted, measured, what = None, None, "predicted"
    try:
        if what in data:
            predicted = check_seconds(data[what], what)
        what = "measured"
        if what in data:
            measured = decode(Measured, data[what], "it")
    except OverflowError:
        raise StrategyError(f"{path}: in {what!r} is a number that is too large") from None
    except SoapstoneError as error:
        raise StrategyError(f"{path}: in {what!r}, which `soapstone tune` writes: {error}") from None
    return predicted, measured


def recorded(predicted: float | None, measured: Measured | None) -> dict[str, Any]:
    """The same as a file's content."""
    first = {} if predicted is None else {"predicted": predicted}
    return first if measured is None else {**first, "measured": encode(measured)}
