"""For mkdocs: the reference of the commands, from their own help, each time that the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from soapstone.cli import app

PAGE, PLACE = "reference/commands.md", "<!-- the commands -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What mkdocs calls with each page."""
    if page.file.src_uri != PAGE:
        return markdown
    assert PLACE in markdown, f"{PAGE} has no place for the commands"
    return markdown.replace(PLACE, reference())


def reference() -> str:
    """A section for each command, in the order of `soapstone --help`."""
    return "\n\n".join(_section(name, command) for name, command in commands())


def commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each command with its whole name, those inside a group as `plot scaling`."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    rows = [_row(*record) for p in command.params if (record := p.get_help_record(context)) is not None]
    about = " ".join((command.help or "").split())
    usage = " ".join(["soapstone", name, *arguments, "[OPTIONS]"])
    return "\n".join(
        [f"## {name}", "", about, "", "```text", usage, "```", "", "| option | what |", "|---|---|", *rows]
    )


def _row(name: str, about: str) -> str:
    cells = (f"`{name}`", " ".join(about.split()).replace("[", "\\["))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
