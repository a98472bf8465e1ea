"""What an expert would do by hand, chosen by what the graph holds.

Convolutional networks: "one weird trick" (Krizhevsky, 2014), data parallelism but for dense layers, which split by
channel. Recurrent ones: data parallelism across nodes, and inside a node each layer on one device (Wu et al., 2016),
the heaviest beside few others. Transformers: Megatron (Shoeybi et al., 2019), columns then rows of the products inside
a node, data parallelism across.
"""

from __future__ import annotations

import itertools
from math import prod

from ..graph import Dim, Op, OperatorGraph
from ..strategy import Configuration, Strategy
from ..topology import Topology
from .checkpoints import with_model_checkpoints
from .simple import data_parallel, sample_dim, weighty_layers

_CELLS = {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "lstm", "gru"}
_PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "einsum"}


@with_model_checkpoints
def expert(graph: OperatorGraph, topology: Topology) -> Strategy:
    """The expert's strategy for this kind of graph; data parallelism where it is of no known kind."""
    kinds = {op.kind for op in graph.ops}
    if kinds & _CELLS:
        return _by_layer(graph, topology)
    if "attention" in kinds:
        return megatron(graph, topology)
    if any(kind.startswith("conv") for kind in kinds):
        return _one_weird_trick(graph, topology)
    return data_parallel(graph, topology)


def _one_weird_trick(graph: OperatorGraph, topology: Topology) -> Strategy:
    everyone = tuple(range(topology.num_devices))
    changes = {}
    for op in graph.ops:
        column = _column(op)
        if op.kind in ("linear", "addmm") and column is not None:
            changes[op.name] = Configuration({column.name: len(everyone)}, everyone).fitted(op)
    return data_parallel(graph, topology).replace(changes)


def _by_layer(graph: OperatorGraph, topology: Topology) -> Strategy:
    """The heaviest layer first, each where there is least yet."""
    nodes = _nodes(topology)
    loads = [0] * min(map(len, nodes))
    found = {}
    work = [(sum(op.flops for op in layer), layer) for layer in weighty_layers(graph)]
    for flops, layer in sorted(work, key=lambda pair: -pair[0]):
        place = loads.index(min(loads))
        loads[place] += flops
        found.update({op.name: _sampled(op, tuple(node[place] for node in nodes)) for op in layer})
    return Strategy(graph, topology, found)


@with_model_checkpoints
def megatron(graph: OperatorGraph, topology: Topology) -> Strategy:
    """Columns, then rows, of the products inside a node; data parallelism across nodes, and for what is no product."""
    return tensor_parallel(graph, topology, min(map(len, _nodes(topology))))


def tensor_parallel(graph: OperatorGraph, topology: Topology, width: int) -> Strategy:
    """The same over so many devices of a node."""
    nodes = [node[i : i + width] for node in _nodes(topology) for i in range(0, len(node) - width + 1, width)]
    devices = tuple(device for node in nodes for device in node)
    makers = {tensor: graph.ops[index] for tensor, index in graph.producer.items()}
    columns: dict[str, str] = {}  # op -> the dim of its output that a node's devices share
    found = {}
    for op in graph.ops:
        split = _inside_node(op, makers, columns)
        if split is None:
            found[op.name] = _sampled(op, devices)
            continue
        if not split.combinable:
            columns[op.name] = split.name
        found[op.name] = _shared(op, split, nodes)
    return Strategy(graph, topology, found)


def _inside_node(op: Op, makers: dict[int, Op], columns: dict[str, str]) -> Dim | None:
    """The dim that a node's devices share: columns of a product, or rows after columns; heads; words; classes. What
    only passes on columns, such as rotary positions, keeps them."""
    if op.kind == "attention":
        return _named(op, "head") or _named(op, "rep")
    if op.kind == "embedding":
        return _named(op, "vocab")
    if op.kind == "cross_entropy":
        return _named(op, "class")
    data = makers.get(_data(op))
    given = columns.get(data.name) if data is not None else None
    if op.kind in _PRODUCTS and op.parameters:
        rows = next((dim for dim in op.dims if dim.extra and dim.splittable), None)
        return rows if given is not None and rows is not None else _column(op)
    return _named(op, given) if given is not None and not op.parameters else None


def _data(op: Op) -> int:
    """The tensor that the head's first input comes from."""
    tensors = {o.value: o.tensor for o in op.inputs}
    made = {value: step for step in op.steps for value in step.outputs}
    value = op.steps[op.head].inputs[0]
    while value not in tensors:
        value = made[value].inputs[0]
    return tensors[value]


def _column(op: Op) -> Dim | None:
    """A dim of the output that splits the weight; a whole head rather than a part of one."""
    dims = [dim for dim in op.dims if dim.kind == "parameter" and dim.splittable and not dim.extra]
    return next((dim for dim in dims if dim.name == "head"), dims[0] if dims else None)


def _named(op: Op, name: str) -> Dim | None:
    dim = op.dim(name)
    return dim if dim is not None and dim.splittable else None


def _sample(op: Op) -> list[str]:
    dim = sample_dim(op)
    return [] if dim is None else [dim.name]


def _sampled(op: Op, devices: tuple[int, ...]) -> Configuration:
    """By sample over these devices, or on the first of them; few samples lie far apart, each where its node works."""
    names = _sample(op)
    dim = op.dim(names[0]) if names else None
    if dim is None:
        return Configuration({}, devices[:1])
    degree = min(dim.size, len(devices))
    return Configuration({dim.name: degree}, tuple(devices[i * len(devices) // degree] for i in range(degree)))


def _shared(op: Op, split: Dim, nodes: list[list[int]]) -> Configuration:
    """Samples over the nodes, and a dim over the devices of each. If there are fewer key heads than devices, the query
    heads of each are shared, too, by devices next to the one that has the keys."""
    width, queries = len(nodes[0]), _named(op, "rep")
    inside = {split.name: min(width, split.size)}
    if queries is not None and split.name == "head":
        inside[queries.name] = min(width // inside["head"], queries.size)
    stride = width // prod(inside.values())
    degrees = dict.fromkeys(_sample(op), len(nodes)) | inside
    order = [dim.name for dim in op.dims if dim.name in degrees]
    devices = []
    for index in itertools.product(*(range(degrees[name]) for name in order)):
        at, place = dict(zip(order, index)), 0
        for name, degree in inside.items():
            place = place * degree + at.pop(name)
        devices.append(nodes[sum(at.values())][place * stride])
    return Configuration(degrees, tuple(devices)).fitted(op)


def _nodes(topology: Topology) -> list[list[int]]:
    nodes: dict[int, list[int]] = {}
    for number, device in enumerate(topology.devices):
        nodes.setdefault(device.node, []).append(number)
    return list(nodes.values())
