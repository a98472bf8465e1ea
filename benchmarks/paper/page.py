"""The page of results: a row for each claim, then its picture, its table, and why figures differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .claim import Claim, table
from .jobs import Results
from .scale import Scale

INTRODUCTION = Path(__file__).with_name("introduction.md")


def page_of(claims: Sequence[Claim], scale: Scale, results: Results, folder: Path, pictures: Path) -> str:
    """Markdown for a page in a folder, with the pictures that there are."""
    rows, sections = [], []
    for claim in claims:
        ours = claim.ours(scale, results)
        command = f"`python -m benchmarks.paper {claim.name}`"
        rows.append([f"[{claim.number}](#{anchor(claim)})", claim.says, claim.theirs, ours.there, ours.today, command])
        sections.append(_section(claim, scale, results, pictures, folder))
    head = ["claim", "what", "the paper's figure", "ours in its setting", "ours on today's machines", "command"]
    how = (
        f"This is the {scale.name} version: a search has a budget of {scale.budget:g} s unless a row says otherwise. "
        "Costs and starts come on top, and what is found in that time depends on the machine."
    )
    parts = [INTRODUCTION.read_text().strip(), "## All claims", how, table(head, rows), *sections]
    return "\n\n".join(parts) + "\n"


def anchor(claim: Claim) -> str:
    return f"{claim.number}-{claim.name.replace('_', '-')}"


def _section(claim: Claim, scale: Scale, results: Results, pictures: Path, folder: Path) -> str:
    title = f"## {claim.number} {claim.name.replace('_', ' ')}"
    drawn = pictures / f"{claim.name}.png"
    picture = f"![{claim.says}]({os.path.relpath(drawn, folder)})" if drawn.exists() else ""
    parts = [
        title,
        claim.says if claim.says.endswith("?") else f"{claim.says}.",
        picture,
        claim.more(scale, results),
        claim.differs,
    ]
    return "\n\n".join(part for part in parts if part)
