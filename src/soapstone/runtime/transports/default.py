"""Which transport fits torch.distributed's default group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .ordered import OrderedTransport
from .processes import ProcessTransport, check_initialised
from .protocol import Transport


def default_transport(place: torch.device) -> Transport:
    """Raises RankError where torch.distributed is not initialised."""
    check_initialised()
    return OrderedTransport(place) if dist.get_backend() == "nccl" else ProcessTransport(place)
