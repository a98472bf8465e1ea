"""`soapstone export-weights` and `export-dcp`: convert a checkpoint of any strategy for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..files import check_writable
from ..graph import scaled
from .common import AsJson, print_all, print_json, progress, say

Folder = Annotated[
    Path, typer.Argument(help="Where `train --save` or `parallel.save` wrote checkpoints; the newest counts.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="The file: .safetensors, or .pt for torch.load.")]
DcpFolder = Annotated[Path, typer.Option("-o", "--output", help="The folder to write, which must not exist yet.")]
LastGood = Annotated[bool, typer.Option("--last-good", help="Take the newest checkpoint that is not damaged.")]


def export_weights(
    folder: Folder,
    output: Output = Path("model.safetensors"),
    last_good: LastGood = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a checkpoint as one plain file, under the model's own names."""
    from ..runtime.checkpoints import check_kind, chosen_alone, state_of_checkpoint, write_weights

    check_kind(output)
    check_writable(output)
    with progress(f"Reading {folder}"):
        checkpoint, damaged = chosen_alone(folder, last_good)
        state = state_of_checkpoint(checkpoint)
    for problem in damaged.values():
        say(f"{problem}; it is skipped.", always=True)
    write_weights(output, state)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    if as_json:
        print_json({"path": str(output), "checkpoint": str(checkpoint.folder), "tensors": len(state), "bytes": size})
    else:
        print_all(f"{len(state)} tensors, {scaled(size, 'B')}, in {output}.")


def export_dcp(
    folder: Folder,
    output: DcpFolder = Path("dcp"),
    last_good: LastGood = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a folder for torch.distributed.checkpoint.load: the model, and the optimizer's state."""
    from ..runtime.checkpoints import check_new, chosen_alone, convert

    check_new(output)
    with progress(f"Reading {folder}"):
        checkpoint, damaged = chosen_alone(folder, last_good)
    for problem in damaged.values():
        say(f"{problem}; it is skipped.", always=True)
    with progress(f"Writing {output}"):
        count, size = convert(checkpoint, output)
    if as_json:
        print_json({"path": str(output), "checkpoint": str(checkpoint.folder), "tensors": count, "bytes": size})
    else:
        print_all(f"{count} tensors of the model, {scaled(size, 'B')} in all, in {output}.")
