"""Which transport fits torch.distributed's default group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .gloo import GlooTransport
from .groups import check_initialised
from .nccl import NcclTransport
from .protocol import Transport


def default_transport(place: torch.device) -> Transport:
    """NCCL where the ranks have it and `place` is a GPU, else gloo. Raises RankError where torch.distributed is not
    initialised."""
    check_initialised()
    return NcclTransport(place) if "nccl" in dist.get_backend() and place.type == "cuda" else GlooTransport(place)
