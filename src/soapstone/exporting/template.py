"""The file that an export is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent

from .meshes import Mesh

_HEAD = '''"""{title}

Start it with torchrun, {devices} ranks. On every rank:

    model = parallelize(model)
    inputs, targets = own(inputs), own(targets)  # this rank's samples
    with implicit_replication():  # tensors that the model makes in forward are the same on every device
        loss = criterion(run(model, inputs), targets)
        loss.backward(){differences}
"""

from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

DATA, MODEL = {data}, {model}  # devices along the mesh's axes
MESH: DeviceMesh | None = None


def mesh() -> DeviceMesh:
    """Made once. The middle axis shards what the data axis shares, or is 1 where nothing is sharded."""
    global MESH
    if MESH is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        MESH = init_device_mesh(kind, {shape}, mesh_dim_names=("data", "shard", "model"))
    return MESH


def parallelize(model: torch.nn.Module) -> torch.nn.Module:
'''

_MODEL_AXIS = """row = mesh()["model"]
parallelize_module(model, row, {{
{styles}
}})
distribute_module(model, row)  # what has no style is whole on every device of a row
"""

_TIE = """model.get_submodule({owner!r}).{own} = model.get_parameter({real!r})  # tied
"""

_RECOMPUTED = """for name in {blocks}:
    block = model.get_submodule(name)
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
"""

_DATA_AXIS = """shared = {{"mesh": mesh()["data", "shard"], "reshard_after_forward": {reshard}}}
for name in {blocks}:
    block = model.get_submodule(name)
    if not isinstance(block, torch.nn.ModuleList | torch.nn.ModuleDict):  # which is never called
        fully_shard(block, **shared)
fully_shard(model, **shared)
"""

_SUMS = """for module in model.modules():  # the loss is a sum over samples
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
"""

_TAIL = '''

def own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's samples of a batch."""
    if len(tensor) % DATA:
        raise ValueError(f"{len(tensor)} samples cannot be cut into {DATA} equal shares")
    number = torch.distributed.get_rank() // MODEL
    return tensor.chunk(DATA)[number]


def run(model: torch.nn.Module, *inputs, **kwargs):
    """Forward of this rank's samples; what it gives is whole on every device of a row."""
    if MODEL == 1:
        return model(*inputs, **kwargs)

    def placed(x):
        return DTensor.from_local(x, mesh()["model"], [Replicate()]) if isinstance(x, torch.Tensor) else x

    made = model(*tree_map(placed, inputs), **tree_map(placed, kwargs))
    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, made)
'''


def rendered(
    *,
    title: str,
    mesh: Mesh,
    styles: Mapping[str, str],
    ties: Mapping[str, str],
    blocks: Sequence[str],
    shard: str,
    recomputed: Sequence[str],
    is_sum: bool,
    differences: Sequence[str],
) -> str:
    shape = f"(1, {mesh.data}, {mesh.model})" if shard != "none" else f"({mesh.data}, 1, {mesh.model})"
    told = "\n\nOtherwise than in the strategy:\n" + "\n".join(f"- {each}" for each in differences)
    head = _HEAD.format(
        title=title, devices=len(mesh.devices), data=mesh.data, model=mesh.model, shape=shape,
        differences=told if differences else "",
    )  # fmt: skip
    body = ""
    if mesh.model > 1:
        rows = "\n".join(f"    {path!r}: {style}," for path, style in styles.items())
        body += _MODEL_AXIS.format(styles=rows)
        for alias, real in ties.items():
            owner, _, own = alias.rpartition(".")
            body += _TIE.format(owner=owner, own=own, real=real)
    if recomputed:
        body += _RECOMPUTED.format(blocks=_listed(recomputed))
    if mesh.data > 1:
        body += _DATA_AXIS.format(blocks=_listed(blocks), reshard=shard == "all")
        body += _SUMS if is_sum else ""
    return head + indent(body + "return model\n", "    ") + _TAIL


def _listed(blocks: Sequence[str]) -> str:
    """The names as an expression, a short one where they are numbered through."""
    first = blocks[0].rpartition(".")[0] if blocks else ""
    if len(blocks) > 2 and list(blocks) == [f"{first}.{i}" for i in range(len(blocks))]:
        return f'[f"{first}.{{i}}" for i in range({len(blocks)})]'
    return repr(list(blocks))
