"""A strategy as torch code: FSDP2 over a mesh's data axis, tensor-parallel styles over its model axis.

DTensors flow through the whole model, so what torch has no style for still computes the same, whole on every device of
a row; it is named in the file and by the command.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from ..errors import StrategyError
from ..graph import Op
from ..strategy import Configuration, Strategy
from .meshes import WHOLE, Mesh, cut_dim, mesh_of
from .template import written

_NORMS = ("layer_norm", "rms_norm")
_WITH_ONE_INPUT = ("linear", "embedding", *_NORMS)


@dataclass(frozen=True)
class Export:
    """Code, and what in it is otherwise than in the strategy: sentences that begin with an op's name."""

    mesh: Mesh
    styles: dict[str, str]  # by path of a module
    differences: list[str]
    text: str


def to_dtensor(strategy: Strategy, title: str) -> Export:
    """Raises StrategyError where the samples of a batch do not lie along its first axis."""
    if any(axis not in (0, None) for axis in strategy.graph.settings.batch_dims):
        raise StrategyError("the samples of this batch do not lie along its first axis, which FSDP2 would cut")
    mesh = mesh_of(strategy)
    styles, differences = _styles(strategy, mesh)
    shard, others = _shard(strategy)
    differences += others
    recomputed, beside = _recomputed(strategy)
    differences = _told_once(differences + beside)
    text = written(
        title=title,
        mesh=mesh,
        styles=_folded(styles),
        ties=_ties(strategy) if mesh.model > 1 else {},
        blocks=_blocks(strategy),
        shard=shard,
        recomputed=recomputed,
        averages=_averages(strategy),
        differences=differences,
    )
    return Export(mesh, styles, differences, text)


# Modules that are cut over the model axis


def _styles(strategy: Strategy, mesh: Mesh) -> tuple[dict[str, str], list[str]]:
    styles: dict[str, str] = {}
    differences: list[str] = []
    for op in strategy.graph.ops:
        dim, module = cut_dim(op, strategy[op.name], mesh), _module(strategy, op)
        if dim is None:
            differences.append(f"{op.name} is {_said(strategy[op.name])}; here {_instead(op, mesh)}")
            continue
        if module is None or mesh.model == 1 or dim == WHOLE:
            continue
        style = _style(op, dim)
        if style is None:
            differences.append(f"{op.name} is split by {dim}, for which torch has no style; here it is whole")
        elif styles.setdefault(module, style) != style:
            differences.append(f"{op.name} is split by {dim}, otherwise than {module} is for another op")
    return styles, differences


def _style(op: Op, dim: str) -> str | None:
    names = [each.name for each in op.dims]
    kinds = {kind: [each.name for each in op.dims if each.kind == kind] for kind in ("parameter", "reduction")}
    place = names.index(dim)
    if op.kind in _WITH_ONE_INPUT and op.dims[place].kind == "sample":
        return f"SequenceParallel(sequence_dim={place}, use_local_output=False)"
    if op.kind in _NORMS and op.dims[place].kind == "attribute":
        return f"SequenceParallel(sequence_dim={place}, use_local_output=False)"
    if op.kind in ("linear", "embedding") and kinds["reduction"] == [dim]:
        return "RowwiseParallel(input_layouts=Replicate(), use_local_output=False)"
    if op.kind in ("linear", "embedding") and kinds["parameter"][:1] == [dim]:
        return "ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)"
    return None


def _module(strategy: Strategy, op: Op) -> str | None:
    """The module whose parameters an op reads, by the model's own names."""
    graph = strategy.graph
    read = [graph.tensors[operand.tensor] for operand in op.inputs]
    names = [tensor.name for tensor in read if tensor.source == "parameter"]
    others = [alias for alias, real in graph.aliases.items() if real in names]
    paths = [name.rpartition(".")[0] for name in (*names, *others)]
    return op.name if op.name in paths else next(iter(paths), None)


def _said(configuration: Configuration) -> str:
    split = " and ".join(name for name, degree in configuration.degrees.items() if degree > 1)
    devices = ", ".join(map(str, dict.fromkeys(configuration.devices)))
    return f"{f'split by {split}' if split else 'whole'} on {devices}"


def _instead(op: Op, mesh: Mesh) -> str:
    is_sampled = mesh.data > 1 and any(dim.kind == "sample" for dim in op.dims)
    return "only its samples are" if is_sampled else "it is whole on every device"


def _ties(strategy: Strategy) -> dict[str, str]:
    """Parameters that a model has under a second name."""
    parameters = {tensor.name for tensor in strategy.graph.tensors if tensor.source == "parameter"}
    return {alias: real for alias, real in strategy.graph.aliases.items() if real in parameters}


# What the data axis shares, and what is recomputed


def _shard(strategy: Strategy) -> tuple[str, list[str]]:
    """How most parameters are kept, and ops whose are otherwise."""
    graph = strategy.graph
    trained = [op for op, own in zip(graph.ops, graph.trains) if own]
    shards = Counter(strategy[op.name].shard for op in trained)
    most = max(shards, key=lambda shard: shards[shard], default="none")
    said = {"none": "is not sharded", "optimizer": "shares its optimizer's state", "all": "shares its weights"}
    others = [op.name for op in trained if strategy[op.name].shard != most]
    return most, [f"{name} {said[strategy[name].shard]}; here it is as the others" for name in others]


def _recomputed(strategy: Strategy) -> tuple[list[str], list[str]]:
    """The blocks of which some op is recomputed, and ops that are recomputed in no block."""
    marked = [op for op in strategy.graph.ops if strategy[op.name].recompute]
    blocks = list(dict.fromkeys(block for op in marked if (block := _block(op.name)) is not None))
    kept = [op for op in strategy.graph.ops if _block(op.name) in blocks and op.backward and op not in marked]
    lone = [f"{op.name} is recomputed; here it is in no block, and kept" for op in marked if _block(op.name) is None]
    others = [f"{op.name} is kept; here it is recomputed with its block" for op in kept]
    return blocks, lone + others


def _blocks(strategy: Strategy) -> list[str]:
    names = (tensor.name for tensor in strategy.graph.tensors if tensor.source == "parameter")
    return list(dict.fromkeys(block for name in names if (block := _block(name)) is not None))


def _block(name: str) -> str | None:
    """The path up to its first number: `blocks.0` of `blocks.0.attention.query`."""
    found = re.match(r"(.*?\.\d+)(\.|$)", name)
    return found[1] if found else None


def _averages(strategy: Strategy) -> bool:
    """Whether the loss is a mean over samples, as FSDP2 takes it."""
    graph = strategy.graph
    op = graph.ops[graph.producer[graph.loss]]
    head = op.steps[op.head]
    return head.args.get("reduction", 1) == 1 if "reduction" in head.args else "mean" in head.kind


def _folded(styles: dict[str, str]) -> dict[str, str]:
    """One row for modules of the same name in all blocks, where they have the same style."""
    found: dict[str, str] = {}
    for name, paths in groupby(sorted(styles, key=lambda path: (_starred(path), path)), key=_starred):
        own = list(paths)
        same = len({styles[path] for path in own}) == 1
        found.update({name: styles[own[0]]} if same else {path: styles[path] for path in own})
    return found


def _starred(path: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def _told_once(sentences: list[str]) -> list[str]:
    """What is alike in all blocks, once."""
    alike: dict[str, list[str]] = {}
    for sentence in sentences:
        name, _, rest = sentence.partition(" ")
        alike.setdefault(f"{_starred(name)} {rest}", []).append(sentence)
    return [own[0] if len(own) == 1 else folded for folded, own in alike.items()]
