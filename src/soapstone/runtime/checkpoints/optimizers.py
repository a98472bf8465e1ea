"""The state of the ranks' optimizers, apart from the values of its tensors. It must be the same on all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...errors import RankError
from ..store import Store
from .index import plain_numbers

Kept = dict[str, tuple[list[str], dict[str, Any]]]  # by parameter: the names of all values, and the plain numbers


class Collected(NamedTuple):
    """By parameter: the names of all values in an optimizer's state, and the plain numbers among these."""

    names: dict[str, tuple[str, ...]]
    numbers: dict[str, dict[str, Any]]


def state_on_rank(store: Store, optimizer: torch.optim.Optimizer | None) -> Kept:
    """The state on this rank, for parameters of which it has elements. Raises RankError if a value cannot be saved."""
    found: Kept = {}
    for name, parameter in store.parameters() if optimizer is not None else ():
        assert optimizer is not None
        state = optimizer.state.get(parameter, {})
        numbers = plain_numbers(state)
        for key, value in state.items():
            if key not in numbers and not isinstance(value, torch.Tensor):
                what = f"{type(optimizer).__name__}'s {key!r} of {name!r}, a {type(value).__name__},"
                raise RankError(f"{what} cannot be saved; an optimizer may keep tensors, numbers and strings")
        if parameter.numel() and state:
            found[name] = sorted(state), numbers
        elif parameter.numel():
            found[name] = [], {}
    return found


def collected(ranks: list[Kept]) -> Collected:
    """The common state of all ranks. Raises RankError, the same on all ranks, if ranks differ."""
    first: dict[str, int] = {}
    for rank, kept in enumerate(ranks):
        for name, (keys, numbers) in kept.items():
            other = first.setdefault(name, rank)
            names, values = ranks[other][name]
            differ = sorted({*keys} ^ {*names}) or sorted(k for k in values if not _same(values[k], numbers[k]))
            if differ:
                raise RankError(
                    f"the optimizers of ranks {other} and {rank} differ in {differ[0]!r} of {name!r}; give all ranks "
                    "the same optimizer, over parallel.parameters()"
                )
    rows = {name: ranks[rank][name] for name, rank in first.items() if ranks[rank][name][0]}
    return Collected({name: tuple(keys) for name, (keys, _) in rows.items()}, {n: row for n, (_, row) in rows.items()})


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; two NaNs are."""
    return bool(one == other) or repr(one) == repr(other)
