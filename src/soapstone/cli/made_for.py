"""What a strategy file says that it was made for, checked as if a user had typed it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from ..errors import SoapstoneError
from ..files import checked_path, shortened
from ..loading import Request

OPTIONS = {"model": "--model MODEL", "topology": "-t TOPOLOGY"}  # that may name a file
PER_RUN = ("fresh", "fit")  # what only a user may ask for
LONGEST = 1000  # characters
Text = Annotated[str, "an item of a list"]


def check_made_for(strategy: str, made_for: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise SoapstoneError for arguments that no command takes, or that name a file outside of the strategy's folder:
    a model's file is run, and the strategy may come from anywhere."""
    for name, value in made_for.items():
        if name not in hints or name in PER_RUN:
            raise SoapstoneError(f"{strategy} was made for a {shortened(name)}, which this version does not know")
        if not _is_of(hints[name], value):
            raise SoapstoneError(f"{strategy} was made for {name} {shortened(value)}, which cannot be; write it anew")
    for name, option in OPTIONS.items():
        if (path := _file_in(name, made_for.get(name, ""))) and not _is_beside(path, strategy):
            raise SoapstoneError(
                f"{strategy} names the {name} {shortened(made_for[name])}, which is not in its folder; where you trust "
                f"it, name it yourself, with {option}"
            )


def _is_of(hint: Any, value: object) -> bool:
    """Whether an option takes such a value."""
    kind, *_ = get_args(hint)
    allowed = get_args(kind) or (kind,)
    if isinstance(value, list):
        return any(get_origin(k) is list for k in allowed) and all(_is_of(Text, item) for item in value)
    return type(value) in allowed and (not isinstance(value, str) or len(value) <= LONGEST)


def _file_in(name: str, value: str) -> str:
    """The file that an argument names, where it names one."""
    if name == "topology":
        return value if value.endswith((".yaml", ".yml")) else ""
    return (value.rpartition(":")[0] or value) if Request(value).is_file else ""


def _is_beside(path: str, strategy: str) -> bool:
    """Whether it lies in the strategy's folder, or in one inside of that."""
    try:
        return checked_path(path).resolve().is_relative_to(Path(strategy).resolve().parent)
    except (OSError, RuntimeError, ValueError):  # it is no path, or links go in a circle
        return False
