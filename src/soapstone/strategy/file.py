"""Strategy files: JSON that a person can write by hand.

    {"kind": "soapstone strategy", "format": 2,
     "default": {"degrees": {"sample": 4}, "devices": "0-3"},
     "ops": {"encoder.*": {"devices": "1"}, "head": {"degrees": {"channel": 2, "sample": 2}, "devices": [0, 2, 1, 3]}}}

An op takes the row of its own name, else the most specific pattern that fits it, else the default. A row under an op's
own name must be legal for it; a pattern's or the default's is fitted: dims that the op cannot split stay whole, but one
of its ops must have each. Devices are a list in row-major order of the parts, or a range, "0-15" or "0-12:4".
A row may also have "shard": "optimizer" or "all", for the parameters of its ops, "recompute": true, and "in_flight":
how many of the file's "microbatches" are in flight at a time.
`made_for` is written by `save` and compared when the file is read; `predicted` and `measured` are what `soapstone tune`
found: seconds of a step, and on what.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import GraphError, StrategyError, meant
from ..files import read_json, shortened
from ..graph import Op, OperatorGraph, microbatch
from ..topology import Topology
from .configuration import Configuration, written
from .measured import Measured, record_in, recorded
from .patterns import assigned, folded

KIND, FORMAT = "soapstone strategy", 2
_PLAIN = (str, int, float, list)
_KEYS = ("kind", "format", "made_for", "predicted", "measured", "microbatches", "default", "ops")
_ROW_KEYS = ("devices", "degrees", "shard", "recompute", "in_flight")
Record = tuple[float | None, Measured | None]  # what was predicted, and what was measured


def text_of(data: Mapping[str, Any]) -> str:
    """What the file of a strategy says, with a line for each row."""
    head = {**data, "ops": {}}
    return _lines(head).removesuffix("{}\n}") + _lines(data["ops"], "  ") + "\n}\n"


def data_of(
    graph: OperatorGraph,
    topology: Topology,
    configurations: Mapping[str, Configuration],
    microbatches: int = 1,
    arguments: Mapping[str, Any] | None = None,
    record: Record = (None, None),
) -> dict[str, Any]:
    """What the file of a strategy holds: a pattern or the default for ops that are configured alike."""
    default, rows = folded(_cut(graph, microbatches), configurations)
    head = {"kind": KIND, "format": FORMAT, "made_for": _made_for(graph, topology, arguments), **recorded(*record)}
    shared: dict[str, Any] = {"microbatches": microbatches} if microbatches > 1 else {}
    shared |= {} if default is None else {"default": _row(default)}
    return {**head, **shared, "ops": {name: _row(configuration) for name, configuration in rows.items()}}


def _lines(data: dict[str, Any], margin: str = " ") -> str:
    """An object with a line for each key."""
    rows = [f"{margin}{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(rows) + ("\n" if rows else "") + margin[1:] + "}"


def read(
    path: str | Path, graph: OperatorGraph, topology: Topology
) -> tuple[dict[str, Configuration], int, tuple[str, ...], Record]:
    """A configuration for every op, how many microbatches there are, what differs from what the file was made for, and
    what was predicted and measured, which is nothing where something differs. Raises StrategyError."""
    data = _content(path)
    if not isinstance(rows := data.get("ops", {}), dict):
        raise StrategyError(f"{path}: 'ops' must be an object with a configuration for each op or pattern")
    named = {name: _configuration(path, f"op {name!r}", row) for name, row in rows.items()}
    default = _configuration(path, "the default", data["default"]) if "default" in data else None
    notes = _differences(data.get("made_for"), graph, topology)
    try:
        played = _cut(graph, data.get("microbatches", 1))
        found = _assign(named, default, played, notes)
        for op in played.ops:
            found[op.name].check(op, topology.num_devices)
    except StrategyError as error:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise StrategyError(f"{path} does not apply: {error}{why}") from None
    record = (None, None) if notes else record_in(data, path)
    return found, data.get("microbatches", 1), tuple(f"{path}: {note}; it still applies" for note in notes), record


def _cut(graph: OperatorGraph, count: Any) -> OperatorGraph:
    """What configurations are for: a microbatch. As it is where it cannot be cut so, which Strategy refuses."""
    try:
        return microbatch(graph, count) if type(count) is int else graph
    except GraphError:
        return graph


def arguments_in(path: str | Path) -> dict[str, Any]:
    """What the command was asked for that wrote this file; nothing where none did. Raises StrategyError."""
    data = _content(path)
    made_for = data.get("made_for")
    arguments = made_for.get("arguments", {}) if isinstance(made_for, dict) else {}
    if not isinstance(arguments, dict) or not all(isinstance(value, _PLAIN) for value in arguments.values()):
        raise StrategyError(f"{path}: 'arguments' must be an object of names and plain values, as a search writes it")
    return arguments


def _content(path: str | Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise StrategyError(f"{path} is not a strategy file; `soapstone search` writes one")
    if data.get("format") != FORMAT:
        raise StrategyError(f"{path} has strategy format {shortened(data.get('format'))}, this version reads {FORMAT}")
    if unknown := [key for key in data if key not in _KEYS]:
        raise StrategyError(f"{path} has an unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    record_in(data, path)
    return data


def _assign(
    named: Mapping[str, Configuration], default: Configuration | None, graph: OperatorGraph, notes: list[str]
) -> dict[str, Configuration]:
    takes = assigned(named, default, graph)
    if missing := [op.name for op in graph.ops if op.name not in takes]:
        raise StrategyError(f"it has no configuration for {_some(missing)}, and no default")
    used = set(takes.values())
    if unused := [name for name in named if name not in used]:
        known = [] if set(unused[0]) & set("*?[") else [op.name for op in graph.ops]
        remedy = meant(unused[0], known, "")
        notes.append(f"it names {_some(unused)}, which this graph does not have{remedy and '; ' + remedy}")
    found: dict[str, Configuration] = {}
    for row in dict.fromkeys(takes.values()):
        configuration = default if row is None else named[row]
        assert configuration is not None
        ops = [op for op in graph.ops if takes[op.name] == row]
        if row not in graph:
            _check_dims(row, configuration, ops)
        found.update({op.name: configuration if op.name == row else configuration.fitted(op) for op in ops})
    return found


def _check_dims(pattern: str | None, configuration: Configuration, ops: list[Op]) -> None:
    """Raise StrategyError for a dim that none of the ops has: fitting would drop it without a word."""
    where = "the default" if pattern is None else f"pattern {pattern!r}"
    dims = list(dict.fromkeys(dim.name for op in ops for dim in op.dims))
    for name in configuration.degrees:
        if name not in dims:
            remedy = meant(name, dims, f"their dims are: {', '.join(dims) or 'none'}")
            raise StrategyError(f"{where} splits {name!r}, which no op that it applies to has; {remedy}")


def _made_for(graph: OperatorGraph, topology: Topology, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    kinds = Counter(device.kind for device in topology.devices)
    found: dict[str, Any] = {"graph": graph.fingerprint, "ops": len(graph.ops), "devices": dict(kinds)}
    given = {name: value for name, value in (arguments or {}).items() if value not in (None, "")}
    return {**found, "arguments": given} if given else found


def _differences(made_for: Any, graph: OperatorGraph, topology: Topology) -> list[str]:
    if made_for is None:
        return []
    if not isinstance(made_for, dict):
        raise StrategyError("'made_for' must be an object, as save writes it")
    notes, here = [], _made_for(graph, topology)
    if made_for.get("graph") != here["graph"]:
        was, now = (f"graph {m.get('graph')} of {m.get('ops')} ops" for m in (made_for, here))
        notes.append(f"it was made for {was}, this is {now}")
    if made_for.get("devices") != here["devices"]:
        was, now = (_counted(m.get("devices")) for m in (made_for, here))
        notes.append(f"it was made for {was}, this topology has {now}")
    return notes


def _counted(kinds: Any) -> str:
    if not isinstance(kinds, dict):
        return shortened(kinds)
    return " and ".join(f"{count} {kind}" for kind, count in kinds.items())


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(map(repr, listed[:6])) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")


def _row(configuration: Configuration) -> dict[str, Any]:
    row: dict[str, Any] = {"degrees": dict(configuration.degrees), "devices": written(configuration.devices)}
    if configuration.shard != "none":
        row["shard"] = configuration.shard
    if configuration.recompute:
        row["recompute"] = True
    return {**row, "in_flight": configuration.in_flight} if configuration.in_flight else row


def _configuration(path: str | Path, what: str, row: object) -> Configuration:
    if not isinstance(row, dict) or not set(row) <= set(_ROW_KEYS) or "devices" not in row:
        raise StrategyError(
            f"{path}: {what} must have 'devices', may have {', '.join(map(repr, _ROW_KEYS[1:]))}, and nothing else"
        )
    try:
        return Configuration(**{**row, "devices": _read(row["devices"])})
    except StrategyError as error:
        raise StrategyError(f"{path}: {what}: {error}") from None


def _read(devices: object) -> tuple[int, ...]:
    if isinstance(devices, list):
        return tuple(devices)
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", devices) if isinstance(devices, str) else None
    if match is None or match[3] == "0":
        raise StrategyError(f"devices must be a list of numbers, or a range such as '0-12:4', not {shortened(devices)}")
    first = int(match[1])
    return tuple(range(first, int(match[2] or first) + 1, int(match[3] or 1)))
