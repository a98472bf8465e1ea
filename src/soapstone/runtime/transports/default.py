"""Which transport fits torch.distributed's default group."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from .gloo import GlooTransport
from .groups import check_initialised
from .nccl import NcclTransport
from .protocol import Transport

_kept: dict[torch.device, tuple[Any, NcclTransport]] = {}


def default_transport(place: torch.device) -> Transport:
    """NCCL where the ranks have it and `place` is a GPU, else gloo. Raises RankError where torch.distributed is not
    initialised."""
    check_initialised()
    if "nccl" not in dist.get_backend() or place.type != "cuda":
        return GlooTransport(place)
    world: Any = dist.group.WORLD
    group, transport = _kept.get(place, (lambda: None, None))
    if transport is None or group() is not world:  # one for all models, so that the communicators stay few
        transport = NcclTransport(place)
        _kept[place] = (ref(world), transport)
    return transport
