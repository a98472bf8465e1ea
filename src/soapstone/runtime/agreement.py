"""What the ranks must agree on before they begin, and how all of them hear where one does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from ..errors import RankError, SoapstoneError
from .transports import Transport

T = TypeVar("T")


def agree(transport: Transport, act: Callable[[], T]) -> T:
    """Do something on every rank; where any rank fails, raise on all of them and say which and why."""
    result, problem = None, None
    try:
        result = act()
    except Exception as error:
        problem = (type(error) if isinstance(error, SoapstoneError) else RankError, str(error) or type(error).__name__)
    raise_any(transport, transport.exchange(problem))
    return result  # type: ignore[return-value]


def raise_any(transport: Transport, problems: list[tuple[type[SoapstoneError], str] | None]) -> None:
    for rank, found in enumerate(problems):
        if found is not None:
            kind, message = found
            raise kind(message if transport.size == 1 else f"rank {rank}: {message}")


class Verdict:
    """Whether every rank takes its batch, asked for in one small sum that is on its way while the first segment runs.
    Called, it waits, and raises on every rank where one has refused."""

    def __init__(self, transport: Transport, place: torch.device, check: Callable[[], None]) -> None:
        self._transport, self._problem, self._heard = transport, None, transport.size == 1
        self.refused = False
        try:
            check()
        except SoapstoneError as error:
            if transport.size == 1:
                raise
            self._problem = (type(error), str(error))
        if not self._heard:
            refused = torch.tensor([self._problem is not None], dtype=torch.int32, device=place)
            self._refusals = transport.all_reduce(-2, refused, tuple(range(transport.size)))
        if self._problem is not None:
            self()

    def __call__(self) -> None:
        if self._heard:
            return
        self._heard = True
        if int(self._refusals()):
            self.refused = True
            raise_any(self._transport, self._transport.exchange(self._problem))


def checksum(tensors: Mapping[Any, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(str(name).encode())
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
