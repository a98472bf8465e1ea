"""`soapstone export`: a strategy as code for what people run without Soapstone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..exporting import to_dtensor
from ..files import check_writable, write_atomically
from .arguments import Case, StrategyFile, takes_strategy
from .common import AsJson, print_all, print_json

MAX_LISTED = 20


class Target(StrEnum):
    dtensor = "dtensor"


To = Annotated[Target, typer.Option("--to", help="What it is for: torch's own FSDP2 and tensor-parallel styles.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The Python file.")]


@takes_strategy
def export(
    case: Case, strategy: StrategyFile, to: To = Target.dtensor, output: Output = Path("parallel.py"),
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write a strategy as torch code: fully_shard and parallelize_module. It says by op what torch cannot do so; that
    computes the same there, in another way."""
    check_writable(output)
    found = to_dtensor(case.strategy(strategy), f"{case.model} on {case.where}, after the strategy {strategy}.")
    write_atomically(output, found.text)
    if as_json:
        print_json({"path": str(output), "mesh": found.mesh._asdict(), "styles": found.styles,
                    "differences": found.differences})  # fmt: skip
        return
    rows, columns = found.mesh
    listed = [f"  {each}" for each in found.differences[:MAX_LISTED]]
    left = len(found.differences) - len(listed)
    print_all(
        f"{len(case.graph.ops)} ops on a mesh of {rows} (data) x {columns} (model), {len(found.styles)} modules with a "
        f"tensor-parallel style, in {output}.",
        *(["Otherwise than in the strategy:"] if listed else ["All of the strategy is in it."]),
        *listed,
        *([f"  and {left} more, all named in the file"] if left else []),
    )
