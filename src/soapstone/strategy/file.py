"""Strategy files: JSON that a person can write by hand.

    {"kind": "soapstone strategy", "format": 2,
     "default": {"degrees": {"sample": 4}, "devices": "0-3"},
     "ops": {"encoder.*": {"devices": "1"}, "head": {"degrees": {"channel": 2, "sample": 2}, "devices": [0, 2, 1, 3]}}}

An op takes the row of its own name, else the most specific pattern that fits it, else the default. A row under an op's
own name must be legal for it; a pattern's or the default's is fitted: dims that the op cannot split stay whole, but one
of its ops must have each. Every row must name ops of the graph, unless the reader asks for those that do with `fit`.
Devices are a list in row-major order of the parts, or a range, "0-15" or "0-12:4".
A row may also have "shard": "optimizer" or "all", for the parameters of its ops, "recompute": true, and "in_flight":
how many of the file's "microbatches" are in flight at a time.
`made_for` is written by `save` and compared when the file is read; `predicted` and `measured` are what `soapstone tune`
found: seconds of a step, and on what. They are of the strategy as it was then, so they come with a checksum of the
whole file, and count only while that is right. The strategy itself is for people to change.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import GraphError, StrategyError, meant
from ..files import checksum_of, is_whole, read_json, shortened
from ..graph import Op, OperatorGraph, microbatch
from ..topology import Topology
from .configuration import Configuration, written
from .measured import Measured, record_in, recorded
from .patterns import assigned, fits, folded, is_pattern

KIND, FORMAT = "soapstone strategy", 2
MOST_LISTED = 6  # names, in a sentence
MOST_PATTERNS, LONGEST_NAME = 10_000, 1000  # each op is held against each
_PLAIN = (str, int, float, list)
_KEYS = ("kind", "format", "made_for", "predicted", "measured", "checksum", "microbatches", "default", "ops")
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
    shared["ops"] = {name: _row(configuration) for name, configuration in rows.items()}
    sealed = {} if record == (None, None) else {"checksum": checksum_of({**head, **shared})}
    return {**head, **sealed, **shared}


def _lines(data: dict[str, Any], margin: str = " ") -> str:
    """An object with a line for each key."""
    rows = [f"{margin}{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(rows) + ("\n" if rows else "") + margin[1:] + "}"


def read(
    path: str | Path, graph: OperatorGraph, topology: Topology, *, fit: bool = False
) -> tuple[dict[str, Configuration], int, tuple[str, ...], Record]:
    """A configuration for every op, how many microbatches there are, what differs from what the file was made for, and
    what was predicted and measured, which is nothing where something differs. Raises StrategyError; with `fit` not for
    rows that name ops which the graph does not have."""
    data = _content(path)
    if not isinstance(rows := data.get("ops", {}), dict):
        raise StrategyError(f"{path}: 'ops' must be an object with a configuration for each op or pattern")
    if sum(map(is_pattern, rows)) > MOST_PATTERNS or any(len(name) > LONGEST_NAME for name in rows):
        raise StrategyError(
            f"{path} has more than {MOST_PATTERNS} patterns, or one of more than {LONGEST_NAME} letters"
        )
    notes, count = _differences(path, data.get("made_for"), graph, topology), topology.num_devices
    try:
        named = {name: _configuration(f"op {shortened(name)}", row, count) for name, row in rows.items()}
        default = _configuration("the default", data["default"], count) if "default" in data else None
        played = _cut(graph, data.get("microbatches", 1))
        takes = assigned(named, default, played)
        notes += _unmatched(named, takes, played, fit)
        found = _fitted(named, default, takes, played)
        for op in played.ops:
            found[op.name].check(op, count)
    except StrategyError as error:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise StrategyError(f"{path} does not apply: {error}{why}") from None
    if ("predicted" in data or "measured" in data) and not is_whole(data):
        notes.append("it was changed since it was measured, so its predicted and measured times do not count")
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


Takes = Mapping[str, str | None]  # the row of each op; None: the default


def _unmatched(named: Mapping[str, Configuration], takes: Takes, graph: OperatorGraph, fit: bool) -> list[str]:
    """What to say of rows that no op takes. Raises StrategyError for an op that takes none, and unless `fit`, for rows
    that name no op."""
    if missing := [op.name for op in graph.ops if op.name not in takes]:
        raise StrategyError(f"it has no configuration for {_some(missing)}, and no default")
    used = set(takes.values())
    unused = [name for name in named if name not in used]
    unknown = [name for name in unused if not is_pattern(name) or not any(fits(op, name) for op in graph.ops)]
    notes = []
    if shadowed := [name for name in unused if name not in unknown]:
        notes.append(f"no op takes {_some(shadowed)}, since other rows are more specific")
    if unknown:
        known = [] if is_pattern(unknown[0]) else [op.name for op in graph.ops]
        guess = meant(unknown[0], known, "")
        names = f"it names {_some(unknown)}, which this graph does not have; {guess}{guess and ' '}"
        if not fit:
            raise StrategyError(f"{names}--fit, or fit=True in Python, applies all else that it says")
        by_default = sum(row is None for row in takes.values())
        notes.append(f"{names}{by_default} of {len(graph.ops)} ops take its default")
    return notes


def _fitted(
    named: Mapping[str, Configuration], default: Configuration | None, takes: Takes, graph: OperatorGraph
) -> dict[str, Configuration]:
    """What each op takes, as far as it can be split so."""
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


def _differences(path: str | Path, made_for: Any, graph: OperatorGraph, topology: Topology) -> list[str]:
    if made_for is None:
        return []
    if not isinstance(made_for, dict):
        raise StrategyError(f"{path}: 'made_for' must be an object, as save writes it")
    notes, here = [], _made_for(graph, topology)
    if made_for.get("graph") != here["graph"]:
        was, now = (f"graph {_called(m.get('graph'))} of {_called(m.get('ops'))} ops" for m in (made_for, here))
        notes.append(f"it was made for {was}, this is {now}")
    if made_for.get("devices") != here["devices"]:
        was, now = (_counted(m.get("devices")) for m in (made_for, here))
        notes.append(f"it was made for {was}, this topology has {now}")
    return notes


def _counted(kinds: Any) -> str:
    if not isinstance(kinds, dict) or len(kinds) > MOST_LISTED:
        return shortened(kinds)
    return " and ".join(f"{_called(count)} {_called(kind)}" for kind, count in kinds.items())


def _called(value: object) -> str:
    """As it is where it is a short name, else shortened."""
    return value if isinstance(value, str) and len(value) < 60 and value.isprintable() else shortened(value)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(map(shortened, names[:MOST_LISTED])) + more


def _row(configuration: Configuration) -> dict[str, Any]:
    row: dict[str, Any] = {"degrees": dict(configuration.degrees), "devices": written(configuration.devices)}
    if configuration.shard != "none":
        row["shard"] = configuration.shard
    if configuration.recompute:
        row["recompute"] = True
    return {**row, "in_flight": configuration.in_flight} if configuration.in_flight else row


def _configuration(what: str, row: object, num_devices: int) -> Configuration:
    if not isinstance(row, dict) or not set(row) <= set(_ROW_KEYS) or "devices" not in row:
        raise StrategyError(
            f"{what} must have 'devices', may have {', '.join(map(repr, _ROW_KEYS[1:]))}, and nothing else"
        )
    try:
        return Configuration(**{**row, "devices": _read(row["devices"], num_devices)})
    except StrategyError as error:
        raise StrategyError(f"{what}: {error}") from None


def _read(devices: object, num_devices: int) -> tuple[int, ...]:
    """What a range or a list says. Raises StrategyError where a range leaves the topology: a short one names a million
    devices."""
    if isinstance(devices, list):
        return tuple(devices)
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", devices) if isinstance(devices, str) else None
    if match is None or int(match[3] or 1) == 0:
        raise StrategyError(f"devices must be a list of numbers, or a range such as '0-12:4', not {shortened(devices)}")
    first = int(match[1])
    found = range(first, int(match[2] or first) + 1, int(match[3] or 1))
    if beyond := next((device for device in found if device >= num_devices), None):
        raise StrategyError(f"it names device {beyond}; the topology has 0 to {num_devices - 1}")
    return tuple(found)
