"""A store of this world's own. Torchrun keeps one store over all restarts, with what dead ranks have left in it: old
addresses, which new ranks would try to reach, and old signs of life."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from torch._C._distributed_c10d import PrefixStore

from ...errors import LostRankError

_LOOK = 0.01  # seconds between two looks


def own_store(store: Any, rank: int, size: int, timeout: float) -> Any:
    """The part of a store that only the living ranks know. Raises LostRankError where one does not come.

    Rank 0 chooses its name. Another rank leaves a number that nobody has had before, and is answered under that number;
    rank 0 answers all numbers that it finds, those of the dead, too, until every rank has come under the new name."""
    store, deadline = PrefixStore("soapstone meeting", store), time.monotonic() + timeout
    name = _invite(store, size, deadline) if rank == 0 else _ask(store, rank, deadline)
    return PrefixStore(f"soapstone {name}", store)


def _ask(store: Any, rank: int, deadline: float) -> str:
    own = uuid4().hex
    store.set(f"hello {rank}", own)
    while not store.check([f"welcome {own}"]):
        if time.monotonic() > deadline:
            raise LostRankError("rank 0 never came; see its log, and that all machines reach the first one")
        time.sleep(_LOOK)
    name = str(store.get(f"welcome {own}").decode())
    store.set(f"{name} {rank}", "")
    return name


def _invite(store: Any, size: int, deadline: float) -> str:
    name, absent, answered = uuid4().hex, set(range(1, size)), set[str]()
    while absent:
        for rank in sorted(absent):
            if store.check([f"{name} {rank}"]):
                absent.remove(rank)
            elif store.check([f"hello {rank}"]) and (asked := store.get(f"hello {rank}").decode()) not in answered:
                answered.add(asked)
                store.set(f"welcome {asked}", name)
        if absent and time.monotonic() > deadline:
            raise LostRankError(
                f"rank {min(absent)} never came; see its log, and that all machines reach the first one"
            )
        time.sleep(_LOOK if absent else 0)
    return name
