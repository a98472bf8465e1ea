"""Processes exchange values of any length over gloo, and a refusal in place of a value that cannot be sent."""

from pathlib import Path
from typing import Any

import torch

from soapstone.errors import RankError
from soapstone.runtime.transports import GlooTransport
from soapstone.runtime.transports.groups import SMALL
from tests.distributed.launch import run_processes

LENGTHS = (0, 1, SMALL - 100, SMALL, 10 * SMALL, 1_000_000)


def _exchanged(rank: int) -> list[Any]:
    transport, found = GlooTransport(), list[Any]()
    for length in LENGTHS:
        everyone = transport.exchange({"rank": (rank, "x" * length * rank), 7: torch.full((length, 2), float(rank))})
        good = [torch.equal(each[7], torch.full((length, 2), float(i))) for i, each in enumerate(everyone)]
        found.append([len(each["rank"][1]) for each in everyone] if all(good) else None)
    for value in (None, object()):
        try:
            found.append(transport.exchange(value if rank else None))
        except RankError as error:
            found.append(str(error))
    found.append(transport.exchange(rank))
    return found


def test_processes_exchange_values_of_any_length(tmp_path: Path) -> None:
    refused = "rank 1: a rank cannot send a builtins.object to the others; send numbers, strings or tensors"
    wanted = [*([0, length] for length in LENGTHS), [None, None], refused, [0, 1]]
    assert run_processes(2, _exchanged, tmp_path / "meeting") == [wanted, wanted]
