"""Read a strategy as one on a device mesh: the batch is cut over its `data` axis, and one more dim of an op over its
`model` axis."""

from __future__ import annotations

from typing import NamedTuple

from ..graph import Op
from ..strategy import Configuration, Strategy

WHOLE = ""  # where nothing is cut over the model axis


class Mesh(NamedTuple):
    """Devices in rows: those of one row have the same samples."""

    data: int
    model: int

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(range(self.data * self.model))


def mesh_of(strategy: Strategy) -> Mesh:
    """The mesh on which most ops are what the strategy says; of several the one with the most data parallelism."""
    count = strategy.topology.num_devices

    def fitting(mesh: Mesh) -> tuple[int, int]:
        ops = strategy.graph.ops
        return sum(cut_dim(op, strategy[op.name], mesh) is not None for op in ops), mesh.data

    return max((Mesh(count // width, width) for width in range(1, count + 1) if count % width == 0), key=fitting)


def cut_dim(op: Op, configuration: Configuration, mesh: Mesh) -> str | None:
    """The dim of an op that the model axis cuts, WHOLE where it cuts none; None where the op is otherwise."""
    split = {name: degree for name, degree in configuration.degrees.items() if degree > 1}
    names = [dim.name for dim in op.dims]
    sample = next((dim.name for dim in op.dims if dim.kind == "sample"), None)
    of_samples = split.pop(sample, 1) if sample is not None else 1
    rows, devices = (mesh.data if sample is not None else 1), configuration.devices
    if not split:
        if sample is not None and of_samples == len(mesh.devices) and devices == mesh.devices:
            return sample if mesh.model > 1 else WHOLE
        firsts = mesh.devices[:: mesh.model][:rows]
        return WHOLE if of_samples == rows and devices == firsts else None
    (dim, degree), *more = split.items()
    after_samples = rows == 1 or names.index(dim) > names.index(sample or dim)
    is_there = degree == mesh.model and of_samples == rows and devices == mesh.devices[: rows * mesh.model]
    return dim if is_there and after_samples and not more else None
