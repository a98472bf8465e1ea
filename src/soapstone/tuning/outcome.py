"""What a tuning comes to: everyone who ran, and the strategy that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..errors import SoapstoneError
from ..runtime import Transport
from ..strategy import Measured, Strategy
from ..topology import Topology
from .candidates import Candidate
from .contest import Contest
from .race import Race, Ratio

PROMISE = 1.03  # of DistributedDataParallel's time, at most
DDP = "DDP"


@dataclass(frozen=True)
class Row:
    """A contestant: predicted and measured seconds of a step, and how much longer it takes than
    DistributedDataParallel in the same rounds. `note` says why it is out."""

    name: str
    predicted: float | None
    measured: float | None
    against_ddp: Ratio | None
    rounds: int
    note: str = ""


@dataclass(frozen=True)
class Standing:
    """What a tuning does just now; in a race, how it stands."""

    what: str
    rows: tuple[Row, ...] = ()
    share: float | None = None


@dataclass(frozen=True)
class Tuned:
    """The chosen strategy, whose `predicted` and `measured` say what it takes, and everyone who ran. `ended` is
    "clear" where nobody else may win, "time" or "stopped" where it ended early. `failure` says why a rank failed in the
    middle of a step; what was measured before counts."""

    strategy: Strategy
    chosen: str
    rows: tuple[Row, ...]
    topology: Topology
    ended: str
    failure: str = ""

    @property
    def against_ddp(self) -> Ratio | None:
        return next(row.against_ddp for row in self.rows if row.name == self.chosen)

    @property
    def keeps_promise(self) -> bool | None:
        """Whether it takes at most 3% longer than DistributedDataParallel; None where that did not run."""
        return None if self.against_ddp is None else self.against_ddp.value <= PROMISE

    def save(self, path: str | Path, arguments: Mapping[str, Any] | None = None) -> None:
        """Write the strategy with what was predicted and measured."""
        self.strategy.save(path, arguments)


def rows_of(found: list[Candidate], race: Race | None, refused: Mapping[str, str]) -> tuple[Row, ...]:
    """The fastest first; those that did not run come last."""
    predicted: dict[str, float | None] = {candidate.name: candidate.predicted for candidate in found}
    ran = set() if race is None else {*race.ours, race.reference}
    rows = []
    for name in [*predicted, *([DDP] if DDP in ran or DDP in refused else [])]:
        if race is None or name not in ran:
            rows.append(Row(name, predicted.get(name), None, None, 0, refused.get(name, "no time was left for it")))
            continue
        beside = race.against(name, DDP) if DDP in ran and race.num_rounds else None
        out = "" if name in race.alive else "slower"
        rows.append(Row(name, predicted.get(name), race.median(name), beside, race.rounds(name), out))
    order = {row.name: _place(row, race) for row in rows}
    return tuple(sorted(rows, key=lambda row: order[row.name]))


def _place(row: Row, race: Race | None) -> tuple[bool, float]:
    if race is None or row.measured is None:
        return True, row.predicted or inf
    return False, race.against(row.name, race.reference).value


def outcome_of(
    found: list[Candidate], contest: Contest, race: Race | None, topology: Topology, transport: Transport,
    place: torch.device,
) -> Tuned:  # fmt: skip
    rows = rows_of(found, race, contest.refused)
    measured = race is not None and race.num_rounds > 0
    if contest.failure and not measured:
        raise SoapstoneError(contest.failure)
    if race is None and contest.ended != "stopped":
        raise SoapstoneError(f"no strategy could run: {next(iter(contest.refused.values()), 'there was no time')}")
    chosen = race.leader if race is not None and measured else min(found, key=lambda each: each.predicted).name
    candidate = next(each for each in found if each.name == chosen)
    strategy = candidate.strategy
    strategy.predicted = candidate.predicted
    if race is not None and measured:
        strategy.measured = _measured(race, chosen, transport.size, place)
    return Tuned(strategy, chosen, rows, topology, contest.ended, contest.failure)


def _measured(race: Race, chosen: str, ranks: int, place: torch.device) -> Measured:
    device = "cpu" if place.type == "cpu" else torch.cuda.get_device_name(place)
    today = datetime.now(UTC).date().isoformat()
    seconds = race.median(chosen)
    assert seconds is not None
    ddp = race.median(DDP, beside=chosen) if race.reference == DDP else None
    return Measured(seconds, ranks, device, today, race.rounds(chosen), ddp)
