"""The names of a model's tensors, and of the parameters in an optimizer's groups, in torch's own state dicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...errors import RankError
from ..store import Store
from ..takeover import tensor_names
from ..transports import Transport
from .index import restore_numbers

Names = Mapping[str, tuple[str, ...]]  # all names of each of the model's tensors, by the one that the graph has


def names_of(store: Store, model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The names of all tensors in the model's state dict."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in tensor_names(model):
        found[store.graph.aliases.get(name, name)].append(name)
    return {name: tuple(several) for name, several in found.items()}


def groups_of(
    store: Store, transport: Transport, optimizer: torch.optim.Optimizer | None, names: Names
) -> list[list[str]]:
    """The trained parameters in each of the optimizer's groups, on any rank, in the model's order. Raises RankError if
    ranks have different numbers of groups."""
    own = {id(parameter): name for name, parameter in store.parameters() if parameter.requires_grad}
    ranks = transport.exchange(
        [
            [own[id(parameter)] for parameter in group["params"] if id(parameter) in own]
            for group in (() if optimizer is None else optimizer.param_groups)
        ]
    )
    if len({len(groups) for groups in ranks}) > 1:
        raise RankError("the optimizers of ranks have different parameter groups; give all ranks the same")
    members = [{name for groups in ranks for name in groups[i]} for i in range(len(ranks[0]))]
    return [[name for name in names if name in group] for group in members]


def kept_by(optimizer: torch.optim.Optimizer, i: int, settings: dict[str, Any], ndim: int) -> set[str] | None:
    """The names of the values that an optimizer of this class keeps for a parameter, found by one step on a small one;
    None if such a step fails."""
    parameter = nn.Parameter(torch.zeros([1] * ndim))
    parameter.grad = torch.zeros_like(parameter)
    group = {**optimizer.param_groups[i], "foreach": None, "fused": None, "capturable": False}
    group = {what: value for what, value in group.items() if what in optimizer.param_groups[i]}
    restore_numbers(group, {what: value for what, value in settings.items() if not isinstance(value, dict)})
    probe = object.__new__(type(optimizer))
    try:
        probe.__setstate__(
            {
                "defaults": optimizer.defaults,
                "state": defaultdict(dict),
                "param_groups": [{**group, "params": [parameter]}],
            }
        )
        probe.step()
    except Exception:  # a user's own optimizer may need anything
        return None
    return {*probe.state[parameter]}
