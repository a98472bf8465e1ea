"""A strategy as torch code: FSDP2 over a mesh's data axis, tensor-parallel styles over its model axis.

DTensors flow through the whole model, so what torch has no style for still computes the same, whole on every device of
a row; it is named in the file and by the command, as is what computes otherwise: batch norm over all samples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import StrategyError
from ..graph import Op
from ..strategy import Configuration, Strategy
from .meshes import WHOLE, Mesh, cut_dim, mesh_of
from .template import rendered

_NORMS = ("layer_norm", "rms_norm")
_WITH_ONE_INPUT = ("linear", "embedding", *_NORMS)
_BATCH_STATISTICS = ("batch_norm",)
MEAN, SUM = 1, 2  # as torch numbers reductions


@dataclass(frozen=True)
class Export:
    """Code, and what in it is otherwise than in the strategy: sentences that begin with an op's name."""

    mesh: Mesh
    styles: dict[str, str]  # by path of a module
    differences: list[str]
    text: str


def to_dtensor(strategy: Strategy, title: str) -> Export:
    """Raises StrategyError where the samples of a batch do not lie along its first axis."""
    if strategy.microbatches > 1:
        raise StrategyError("FSDP2 and tensor parallelism have no microbatches; export a strategy without")
    if any(axis for axis in strategy.graph.settings.batch_dims):
        raise StrategyError("the samples of this batch do not lie along its first axis, which FSDP2 would cut")
    if None in strategy.graph.settings.batch_dims:
        raise StrategyError("an input of this model has no samples, which the exported code would cut nevertheless")
    mesh = mesh_of(strategy)
    styles, differences = _styles(strategy, mesh)
    shard, others = _shard(strategy)
    differences += others
    recomputed, beside = _recomputed(strategy)
    differences += beside
    is_sum, unlike = _loss(strategy)
    differences += unlike if mesh.data > 1 else []
    differences = _merged(differences, [op.name for op in strategy.graph.ops])
    text = rendered(
        title=title,
        mesh=mesh,
        styles=_folded(styles, _modules(strategy)),
        ties=_ties(strategy) if mesh.model > 1 else {},
        blocks=_blocks(strategy) if mesh.data > 1 else [],
        shard=shard,
        recomputed=recomputed,
        is_sum=is_sum,
        differences=differences,
    )
    return Export(mesh, styles, differences, text)


# Modules that are cut over the model axis


def _styles(strategy: Strategy, mesh: Mesh) -> tuple[dict[str, str], list[str]]:
    styles: dict[str, str] = {}
    differences: list[str] = []
    for op in strategy.graph.ops:
        dim, module = cut_dim(op, strategy[op.name], mesh), _module(strategy, op)
        if op.kind in _BATCH_STATISTICS and mesh.data > 1:
            differences.append(f"{op.name} has the statistics of the whole batch; here each rank has its own samples'")
        if dim is None:
            differences.append(f"{op.name} is {_said(strategy[op.name])}; here {_instead(op, mesh)}")
            continue
        if module is None or mesh.model == 1 or dim == WHOLE:
            continue
        style = _style(op, dim) if _is_plain(strategy, module) else None
        if style is None:
            differences.append(f"{op.name} is split by {dim}, for which torch has no style; here it is whole")
        elif styles.setdefault(module, style) != style:
            differences.append(f"{op.name} is split by {dim}, otherwise than {module} is for another op")
    return styles, differences


def _style(op: Op, dim: str) -> str | None:
    names = [each.name for each in op.dims]
    summed = [each.name for each in op.dims if each.extra and each.kind != "sample"]
    made = [each.name for each in op.dims if each.kind == "parameter" and not each.extra]
    place = names.index(dim)
    if op.kind in _WITH_ONE_INPUT and op.dims[place].kind == "sample":
        return f"SequenceParallel(sequence_dim={place}, use_local_output=False)"
    if op.kind in _NORMS and op.dims[place].kind == "attribute":
        return f"SequenceParallel(sequence_dim={place}, use_local_output=False)"
    if op.kind in ("linear", "embedding") and summed == [dim]:
        return "RowwiseParallel(input_layouts=Replicate(), use_local_output=False)"
    if op.kind in ("linear", "embedding") and made[:1] == [dim]:
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
    parameters = _parameters(strategy)
    return {alias: real for alias, real in strategy.graph.aliases.items() if real in parameters}


# What the data axis shares, and what is recomputed


def _shard(strategy: Strategy) -> tuple[str, list[str]]:
    """How most parameters are kept, and ops whose are otherwise."""
    graph = strategy.graph
    trained = [op for op, own in zip(graph.ops, graph.trains) if own]
    shards = Counter(strategy[op.name].shard for op in trained)
    most = max(shards, key=lambda shard: shards[shard], default="none")
    said = {"none": "is not sharded", "optimizer": "shards its optimizer's state", "all": "shards its weights"}
    others = [op.name for op in trained if strategy[op.name].shard != most]
    return most, [f"{name} {said[strategy[name].shard]}; here it is as the others" for name in others]


def _recomputed(strategy: Strategy) -> tuple[list[str], list[str]]:
    """The blocks of which some op is recomputed, and ops that are recomputed in no block, or kept in one."""
    ops = {op.name: _block(re.sub(r"_\d+$", "", op.name) + ".") for op in strategy.graph.ops if op.backward}
    marked = [name for name in ops if strategy[name].recompute]
    blocks = list(dict.fromkeys(block for name in marked if (block := ops[name]) is not None))
    lone = [f"{name} is recomputed; here it is in no block, and kept" for name in marked if ops[name] is None]
    kept = [name for name in ops if ops[name] in blocks and name not in marked]
    return blocks, lone + [f"{name} is kept; here it is recomputed with its block" for name in kept]


def _blocks(strategy: Strategy) -> list[str]:
    """The modules that FSDP2 takes one by one. A parameter that two of them share is the root's, as they are then."""
    names = [*_parameters(strategy), *_ties(strategy)]
    blocks = dict.fromkeys(block for name in names if (block := _block(name)) is not None)
    for alias, real in _ties(strategy).items():
        if _block(alias) != _block(real):
            blocks = {each: None for each in blocks if each not in (_block(alias), _block(real))}
    return list(blocks)


def _block(name: str) -> str | None:
    """The path up to its first number, where it goes on: `blocks.0` of `blocks.0.attention.query`."""
    found = re.match(r"(.*?\.\d+)\.", name)
    return found[1] if found else None


def _parameters(strategy: Strategy) -> list[str]:
    return [tensor.name for tensor in strategy.graph.tensors if tensor.source == "parameter"]


def _modules(strategy: Strategy) -> list[str]:
    """All that have parameters of their own."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in (*_parameters(strategy), *_ties(strategy))))


def _is_plain(strategy: Strategy, module: str) -> bool:
    """Whether a module's own parameters are those of a linear layer, an embedding or a norm: torch has styles for these
    alone."""
    names = (name.rpartition(".") for name in (*_parameters(strategy), *_ties(strategy)))
    return {name for path, _, name in names if path == module} <= {"weight", "bias"}


def _loss(strategy: Strategy) -> tuple[bool, list[str]]:
    """Whether the loss is a sum over samples, where FSDP2 takes it for a mean; what to say if it is neither."""
    graph = strategy.graph
    op = graph.ops[graph.producer[graph.loss]]
    head = op.steps[op.head]
    is_last = all(step.shape for step in op.steps[op.head + 1 :])
    reduction = head.args.get("reduction", {"mean": MEAN, "sum": SUM}.get(head.kind))
    if is_last and reduction in (MEAN, SUM) and head.args.get("weight") is None:
        return reduction == SUM, []
    return False, [
        f"{op.name} is no plain mean or sum over samples; here the gradients of each rank's loss are averaged"
    ]


# Names


def _folded(styles: dict[str, str], modules: list[str]) -> dict[str, str]:
    """One row for modules of the same name in all blocks, where they all have the same style."""
    alike, found = _alike(modules), dict[str, str]()
    for pattern, own in _alike(styles).items():
        same = own == alike[pattern] and len({styles[path] for path in own}) == 1
        found.update({pattern: styles[own[0]]} if same else {path: styles[path] for path in own})
    return found


def _merged(differences: list[str], names: list[str]) -> list[str]:
    """One sentence for ops of the same name in all blocks."""
    alike, found = _alike(names), dict[tuple[str, str], list[str]]()
    for sentence in differences:
        name, _, rest = sentence.partition(" ")
        found.setdefault((_starred(name), rest), []).append(name)
    return [
        sentence
        for (pattern, rest), own in found.items()
        for sentence in ([f"{pattern} {rest}"] if own == alike[pattern] else [f"{name} {rest}" for name in own])
    ]


def _alike(names: Iterable[str]) -> dict[str, list[str]]:
    """By their pattern."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_starred(name), []).append(name)
    return found


def _starred(path: str) -> str:
    """The name with a star for each number."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
