"""python -m benchmarks.paper [--whole] [--docs] [--out FOLDER] [CLAIM ...]

Runs what the paper's claims need, or only those that are named, draws them and writes a page. What was run before is
not run again, so it may be stopped at any time. The quick version takes some 20 minutes on two cores, the whole hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from soapstone.errors import meant
from soapstone.files import write_atomically

from .claim import Claim
from .claims import CLAIMS
from .jobs import Results, run_all
from .page import page_of
from .scale import QUICK, WHOLE, Scale

ROOT = Path(__file__).parents[2]
NAMES = [claim.name for claim in CLAIMS]


@dataclass(frozen=True)
class Places:
    """Where results, pictures and the page go."""

    data: Path
    pictures: Path
    page: Path


DOCS = Places(ROOT / "benchmarks/data/paper", ROOT / "docs/images/paper", ROOT / "docs/results/paper.md")


def main(
    claims: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(NAMES)}.")] = None,
    whole: Annotated[bool, typer.Option(help="Hours: all devices, both readings of the batch, rivals.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of results, pictures and the page.")] = Path("build/paper"),
    docs: Annotated[bool, typer.Option(help="Write them to where the documentation has them.")] = False,
    run_only: Annotated[bool, typer.Option(help="Draw nothing, and write no page.")] = False,
    draw_only: Annotated[bool, typer.Option(help="Run nothing; draw what is known.")] = False,
) -> None:
    """The paper's evaluation again, our figures beside its own."""
    console = Console(highlight=False)
    if wrong := [name for name in claims or [] if name not in NAMES]:
        known = f"use some of {', '.join(NAMES)}"
        console.print(f"there is no claim {wrong[0]!r}; {meant(wrong[0], NAMES, known)}")
        raise typer.Exit(2)
    scale = WHOLE if whole else QUICK
    places = DOCS if docs else Places(out, out, out / "paper.md")
    for folder in (places.data, places.pictures):
        folder.mkdir(parents=True, exist_ok=True)
    results = Results(places.data)
    for claim in CLAIMS:
        if claims and claim.name not in claims:
            continue
        if not draw_only:
            run_all(claim.jobs(scale), results, console)
        if not run_only:
            show(claim, scale, results, places.pictures, console)
    if not run_only:
        write_atomically(places.page, page_of(CLAIMS, scale, results, places.page.parent, places.pictures))
        console.print(f"Written to {places.page}.")


def show(claim: Claim, scale: Scale, results: Results, pictures: Path, console: Console) -> None:
    """Draw a claim where all that it needs is known, and say what it comes to."""
    if claim.draw and claim.known(scale, results):
        claim.draw(scale, results, pictures / claim.name)
    ours = claim.ours(scale, results)
    console.print(f"[bold]{claim.number} {claim.says}")
    for name, text in (("paper", claim.theirs), ("ours", ours.there), ("today", ours.today)):
        console.print(f"  {name}: {escape(text)}")


if __name__ == "__main__":
    typer.run(main)
