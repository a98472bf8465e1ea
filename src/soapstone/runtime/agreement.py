"""What the ranks must agree on before they begin, and how all of them hear where one does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from ..errors import CaptureError, GraphError, LostRankError, RankError, SoapstoneError, StrategyError, TopologyError
from .transports import Transport

T = TypeVar("T")
Problem = tuple[str, str]  # the name of an error's class, and its message
_KINDS: dict[str, type[SoapstoneError]] = {
    kind.__name__: kind
    for kind in (SoapstoneError, TopologyError, GraphError, StrategyError, CaptureError, RankError, LostRankError)
}


def agree(transport: Transport, act: Callable[[], T]) -> T:
    """Do something on every rank; where any rank fails, raise on all of them and say which and why."""
    result, problem = None, None
    try:
        result = act()
    except Exception as error:
        problem = _told(error)
    raise_any(transport, transport.exchange(problem))
    return result  # type: ignore[return-value]


def _told(error: Exception) -> Problem:
    names = (kind.__name__ for kind in type(error).__mro__ if _KINDS.get(kind.__name__) is kind)
    return next(names, RankError.__name__), str(error) or type(error).__name__


def raise_any(transport: Transport, problems: list[Problem | None]) -> None:
    for rank, found in enumerate(problems):
        if found is not None:
            name, message = found
            raise _KINDS.get(name, RankError)(message if transport.size == 1 else f"rank {rank}: {message}")


class Verdict:
    """Whether every rank takes its batch, and chooses the same of several programs for it; and the sums of the numbers
    that `check` gives, so many of them. All is asked for in one small message that is on its way while the first
    segment runs. Called, it waits for the sums, and raises on every rank if one has refused, or if the choices differ:
    then `described` says what each rank has."""

    def __init__(
        self, transport: Transport, check: Callable[[], torch.Tensor | None], count: int = 1, choice: int = 0,
        described: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._transport, self._heard, self._described = transport, transport.size == 1, described
        self._problem: Problem | None = None
        self._sum: torch.Tensor | None = None
        self.refused = False
        try:
            self._sum = check()
        except Exception as error:
            if transport.size == 1:
                raise
            self._problem = _told(error)
        if not self._heard:
            ballot = torch.tensor([self._problem is not None, choice, choice**2])
            self._answer = transport.poll(ballot, self._sum, count)
        if self._problem is not None:
            self()

    def __call__(self) -> torch.Tensor | None:
        if not self._heard:
            self._heard = True
            votes, self._sum = self._answer()
            refusals, choices, squares = map(int, votes)
            self.refused = bool(refusals) or squares * self._transport.size != choices**2  # unless all are equal
            if self.refused:
                self._raise()
        return self._sum

    def _raise(self) -> None:
        everyone = self._transport.exchange((self._problem, self._described()))
        raise_any(self._transport, [problem for problem, _ in everyone])
        check_same([described for _, described in everyone])
        raise RankError(
            "some ranks take this batch for slices, others for a whole batch; the first batch of a loop must have the "
            "shapes that were captured"
        )


def check_same(described: list[str]) -> None:
    """Raise RankError unless all ranks pass the same shapes."""
    for rank, found in enumerate(described):
        if found != described[0]:
            raise RankError(
                f"rank 0 passes shapes {described[0]}, but rank {rank} passes {found}; pass the same batch on all ranks"
            )


def checksum(tensors: Mapping[Any, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(str(name).encode())
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
