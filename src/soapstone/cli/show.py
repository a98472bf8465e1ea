"""`soapstone models` and `soapstone show`: what there is, and what a model is made of."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import zoo
from ..graph import Dim, Op, OperatorGraph, op_bytes, scaled
from .common import (
    AsJson,
    Batch,
    BatchNorm,
    Chunk,
    Fresh,
    Listing,
    ModelName,
    Sizes,
    bold,
    graph_of,
    print_all,
    print_json,
)

COLORS = {"sample": "green", "attribute": "cyan", "parameter": "magenta", "reduction": "yellow"}


def models(as_json: AsJson = False) -> None:
    """List the models that are built in, with their sizes."""
    if as_json:
        print_json([{"name": name, **asdict(zoo.entry(name))} for name in zoo.names()])
        return
    headers = ("model", "what", "batch", "parameters", "sizes")
    table = Listing(headers, ("batch", "parameters"), wraps=("what", "sizes"))
    for name in zoo.names():
        entry = zoo.entry(name)
        sizes = " ".join(f"{key}={_plain(value)}" for key, value in entry.sizes.items())
        table.add_row(bold(name), entry.about, str(entry.batch), f"{entry.parameters:,.4g}M", sizes)
    print_all(table)


def show(
    model: ModelName,
    batch: Batch = None,
    sizes: Sizes = None,
    chunk: Chunk = 1,
    batch_norm: BatchNorm = "global",
    every: Annotated[bool, typer.Option("--all", help="A row for every op; else equal ops are one row.")] = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model is made of. It lists the ops, how each may be split, flops, parameters and layers."""
    graph = graph_of(model, batch, sizes, chunk, batch_norm, fresh)
    if as_json:
        print_json(described(graph))
        return
    kinds = Text(" ").join(Text(kind, style=color) for kind, color in COLORS.items())
    legend = Text.assemble("Dims by kind: ", kinds, "; {x} combines partial results, x! is needed whole.")
    print_all(_table(graph, every), f"\n{graph.facts}", legend)


def _table(graph: OperatorGraph, every: bool) -> Listing:
    headers = ("op", "ops", "kind", "dims", "work", "parameters", "layer")
    table = Listing(headers, ("ops", "work", "parameters"), wraps=("dims",), optional=("layer", "kind", "parameters"))
    held = {t.name: t.bytes for t in graph.parameters}
    rows: dict[tuple[Any, ...], list[Op]] = {}
    for op in graph.ops:
        name, layer = (op.name, op.layer) if every else (_starred(op.name), _starred(op.layer))
        bytes_held = sum(held[parameter] for parameter in op.parameters)
        rows.setdefault((name, op.kind, str(_dims(op)), op.flops, bytes_held, layer), []).append(op)
    for (name, kind, _, flops, bytes_held, layer), ops in rows.items():
        table.add_row(
            name if len(ops) > 1 else ops[0].name,
            str(len(ops)),
            kind,
            _dims(ops[0]),
            scaled(flops, "flop"),
            scaled(bytes_held, "B") if bytes_held else "",
            layer if len(ops) > 1 else ops[0].layer,
        )
    return table


def _starred(name: str) -> str:
    """Equal ops of repeated blocks and unrolled steps differ by numbers alone."""
    return re.sub(r"\d+", "*", re.sub(r"_\d+$", "", name))


def described(graph: OperatorGraph) -> dict[str, Any]:
    """A graph for machines."""
    held = {t.name: t.bytes for t in graph.parameters}
    return {
        "fingerprint": graph.fingerprint,
        "settings": asdict(graph.settings),
        **asdict(graph.facts),
        "ops": [_described(op, held) for op in graph.ops],
    }


def _described(op: Op, held: dict[str, int]) -> dict[str, Any]:
    kept = ("name", "size", "kind", "splittable", "combinable")
    return {
        "name": op.name,
        "kind": op.kind,
        "layer": op.layer,
        "dims": [{key: getattr(dim, key) for key in kept} for dim in op.dims],
        "flops": op.flops,
        "bytes": op_bytes(op),
        "parameters": list(op.parameters),
        "parameter_bytes": sum(held[name] for name in op.parameters),
    }


def _dims(op: Op) -> Text:
    def written(dim: Dim) -> Text:
        return Text(str(dim), style=COLORS[dim.kind] if dim.splittable else "dim")

    return Text(" ").join(written(dim) for dim in op.dims)


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
