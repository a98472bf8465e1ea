"""python -m benchmarks.paper [--whole] [--docs] [--out FOLDER] [CLAIM ...]

Runs what the paper's claims need, or only those that are named, draws them and writes a page. What was run before is
not run again, so it may be stopped at any time. The quick version takes some 20 minutes on two cores, the whole hours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from soapstone.errors import meant
from soapstone.files import write_atomically

from .claims import CLAIMS
from .jobs import Results, run_all
from .page import page_of
from .scale import QUICK, WHOLE

ROOT = Path(__file__).parents[2]


def main(
    claims: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(c.name for c in CLAIMS)}.")] = None,
    whole: Annotated[bool, typer.Option(help="Hours: all devices, both readings of the batch, three seeds.")] = False,
    out: Annotated[Path, typer.Option(help="Results, pictures and the page.")] = Path("build/paper"),
    docs: Annotated[bool, typer.Option(help="Write them to where the documentation has them.")] = False,
    run_only: Annotated[bool, typer.Option(help="Draw and write nothing but results.")] = False,
    draw_only: Annotated[bool, typer.Option(help="Run nothing; draw and write what is known.")] = False,
) -> None:
    """The paper's evaluation again, our figures beside its own."""
    console = Console(highlight=False)
    names = [claim.name for claim in CLAIMS]
    if wrong := [name for name in claims or [] if name not in names]:
        console.print(f"there is no claim {wrong[0]!r}; {meant(wrong[0], names, f'use some of {names}')}")
        raise typer.Exit(2)
    scale = WHOLE if whole else QUICK
    data, pictures, page = out, out, out / "paper.md"
    if docs:
        data, pictures = ROOT / "benchmarks/data/paper", ROOT / "docs/images/paper"
        page = ROOT / "docs/results/paper.md"
    for folder in (data, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    results = Results(data)
    chosen = [claim for claim in CLAIMS if not claims or claim.name in claims]
    for claim in chosen:
        if not draw_only:
            run_all(claim.jobs(scale), results, console)
        if run_only:
            continue
        if claim.draw and claim.known(scale, results):
            claim.draw(scale, results, pictures / claim.name)
        ours = claim.ours(scale, results)
        console.print(f"[bold]{claim.number} {claim.says}")
        for name, text in (("paper", claim.theirs), ("ours", ours.there), ("today", ours.today)):
            console.print(f"  {name}: {escape(text)}")
    if run_only:
        return
    write_atomically(page, page_of(CLAIMS, scale, results, page.parent, pictures))
    console.print(f"Written to {page}.")


if __name__ == "__main__":
    typer.run(main)
