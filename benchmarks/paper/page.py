"""The page of results: a row for each claim, then its picture, its table, and why figures differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from soapstone.files import write_atomically

from .claim import Claim, table
from .jobs import Results
from .scale import Scale

INTRODUCTION = Path(__file__).with_name("introduction.md")


def write_page(claims: Sequence[Claim], scale: Scale, results: Results, page: Path, pictures: Path) -> None:
    """Markdown; pictures are linked from where the page lies."""
    rows, sections = [], []
    for claim in claims:
        ours = claim.ours(scale, results)
        command = f"`python -m benchmarks.paper {claim.name}`"
        rows.append([f"[{claim.number}](#{anchor(claim)})", claim.says, claim.theirs, ours.there, ours.today, command])
        sections.append(_section(claim, scale, results, os.path.relpath(pictures, page.parent)))
    head = ["claim", "what", "the paper's figure", "ours in its setting", "ours on today's machines", "command"]
    how = f"Searches take {scale.budget:g} s each, unless a row says otherwise."
    text = "\n\n".join([INTRODUCTION.read_text().strip(), "## All claims", how, table(head, rows), *sections])
    write_atomically(page, text + "\n")


def anchor(claim: Claim) -> str:
    return f"{claim.number}-{claim.name.replace('_', '-')}"


def _section(claim: Claim, scale: Scale, results: Results, pictures: str) -> str:
    title = f"## {claim.number} {claim.name.replace('_', ' ')}"
    picture = f"![{claim.says}]({pictures}/{claim.name}.png)" if claim.draw and claim.known(scale, results) else ""
    parts = [title, claim.says + ".", picture, claim.more(scale, results), claim.differs]
    return "\n\n".join(part for part in parts if part)
