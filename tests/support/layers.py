"""Six layers one after the other, for what is counted by hand."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import soapstone as ss

LAYERS, WIDTH, BATCH = 6, 64, 8


@cache
def layers() -> ss.OperatorGraph:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    return ss.capture(ss.Workload(model, (torch.zeros(BATCH, WIDTH),), loss=torch.sum))
