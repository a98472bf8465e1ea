"""Finds the keys of the model and of the optimizer in a torch.distributed.checkpoint folder. No rule says how they
begin, so this looks for the model's own names.

    model.layer.weight            {"model": ...}, whatever the word is
    layer.weight                  the model's state dict itself, as torchtitan saves it
    model.module.layer.weight     that of a model in DistributedDataParallel
    optim.state.layer.weight.exp_avg     {"optim": ...}, whatever the word is
    optim.param_groups.0.lr              a group's, with its parameters' names in optim.param_groups.0.params
    optim.param_groups.layer.weight.lr   the same by parameter, if the optimizer's state was flattened
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import RankError
from .dcp_metadata import Contents
from .dcp_names import Names

Read = Callable[[str], Any]  # the value of a key
_SHOWN = 6
_NUMBERED = (
    "numbers the parameters in its optimizer's state; save what get_state_dict of "
    "torch.distributed.checkpoint.state_dict returns, which names them, or load without the optimizer"
)


def listed(keys: Collection[str]) -> str:
    """Some of the keys, for a message."""
    shown = ", ".join(sorted(keys)[:_SHOWN])
    more = len(keys) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown or "nothing"


def model_keys(contents: Contents, names: Names, folder: Path) -> dict[str, list[str]]:
    """The keys of each of the model's tensors. Raises RankError unless all tensors are there, under one prefix."""
    own_name = {name: own for own, several in names.items() for name in several}
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key in contents.tensors:
        for end in _ends(key):
            if end in own_name:
                places[key.removesuffix(end)][own_name[end]].append(key)
    whole = [prefix for prefix, found in places.items() if len(found) == len(names)]
    if not whole:
        best = max(places.values(), key=len, default={})
        missing = next(name for name in names if name not in best)
        raise RankError(f"{folder} has no {missing!r}, which the model has; its keys are {listed(contents.keys)}")
    prefix = next((known for known in ("model.", "", whole[0]) if known in whole), "")
    if len(whole) > 1 and prefix not in ("model.", ""):
        raise RankError(f"{folder} has several models, {listed(whole)}; save one of them, as {{'model': ...}}")
    _check_others(contents, prefix, {key for keys in places[prefix].values() for key in keys}, folder)
    return dict(places[prefix])


def _ends(key: str) -> Iterable[str]:
    parts = key.split(".")
    return (".".join(parts[i:]) for i in range(len(parts)))


def _check_others(contents: Contents, prefix: str, used: Collection[str], folder: Path) -> None:
    """Raise RankError if the folder's model has tensors that this one does not have. Without a prefix, any tensor could
    be the model's, except those of optimizers and single numbers."""
    others = tuple(_optimizers(contents))
    for key, stored in contents.tensors.items():
        if key in used or not key.startswith(prefix) or (not prefix and (key.startswith(others) or not stored.shape)):
            continue
        if prefix or stored.dtype.startswith(("float", "bfloat")):
            raise RankError(
                f"{folder} has {key!r}, which the model does not have; its keys are {listed(contents.keys)}"
            )


def _optimizers(contents: Contents) -> set[str]:
    """The prefix of each optimizer's keys."""
    found = {key.partition("param_groups.")[0] for key in contents.keys if "param_groups." in key}
    return {prefix for prefix in found if not prefix or prefix.endswith(".")}


def optimizer_layout(
    contents: Contents, names: Names, groups: Sequence[Collection[str]], read: Read, folder: Path
) -> tuple[dict[str, dict[str, str]], list[dict[str, Any]]]:
    """An optimizer's state and settings, for groups of parameters by name. Raises RankError if the folder has other
    groups."""
    prefixes = _optimizers(contents)
    if len(prefixes) != 1:
        number = f"{len(prefixes)} optimizers, {listed(prefixes)}" if prefixes else "no optimizer"
        raise RankError(f"{folder} has {number}; load without one, or save one; its keys are {listed(contents.keys)}")
    prefix = prefixes.pop()
    settings: dict[str, dict[str, str]] = defaultdict(dict)
    for key in contents.keys:
        if key.startswith(f"{prefix}param_groups."):
            whose, _, what = key.removeprefix(f"{prefix}param_groups.").rpartition(".")
            settings[whose][what] = key
    is_nested = any(re.fullmatch(r"\d+", whose) and "params" in found for whose, found in settings.items())
    act = _nested_groups if is_nested else _flat_groups
    found = act(settings, names, groups, read, folder)
    return _states(contents, f"{prefix}state.", names, folder), found


def _nested_groups(
    settings: Mapping[str, Mapping[str, str]], names: Names, groups: Sequence[Collection[str]], read: Read, folder: Path
) -> list[dict[str, Any]]:
    if {*settings} != {str(i) for i in range(len(settings))} or len(settings) != len(groups):
        raise RankError(
            f"the optimizer of {folder} has {len(settings)} parameter groups, but this one has {len(groups)}; make the "
            "same parameter groups"
        )
    found = []
    for i, group in enumerate(groups):
        given = {what: read(key) for what, key in settings[str(i)].items()}
        members = given.pop("params", None)
        if not isinstance(members, list) or any(isinstance(member, int) for member in members):
            raise RankError(f"{folder} {_NUMBERED}")
        for name in group:
            if not {*names.get(name, ())} & {*members}:
                raise RankError(f"{name!r} is not in parameter group {i} of {folder}; group parameters as there")
        found.append(given)
    return found


def _flat_groups(
    settings: Mapping[str, Mapping[str, str]], names: Names, groups: Sequence[Collection[str]], read: Read, folder: Path
) -> list[dict[str, Any]]:
    found = []
    for i, group in enumerate(groups):
        rows = []
        for name in group:
            keys = next((settings[other] for other in names.get(name, ()) if other in settings), None)
            if keys is None:
                raise RankError(f"{folder} has no settings of the optimizer for {name!r}; save all of them")
            rows.append({what: read(key) for what, key in keys.items()})
        if any(row != rows[0] for row in rows):
            raise RankError(f"{folder} has several settings for parameter group {i}; group parameters as there")
        found.append(rows[0] if rows else {})
    return found


def _states(contents: Contents, prefix: str, names: Names, folder: Path) -> dict[str, dict[str, str]]:
    own_name = {name: own for own, several in names.items() for name in several}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for key in contents.keys:
        if not key.startswith(prefix):
            continue
        name, _, what = key.removeprefix(prefix).rpartition(".")
        if re.fullmatch(r"\d+", name) and name not in own_name:
            raise RankError(f"{folder} {_NUMBERED}")
        if name not in own_name:
            raise RankError(f"the optimizer of {folder} has {key!r}, which is of no parameter; load without it")
        found[own_name[name]][what] = key
    return dict(found)
