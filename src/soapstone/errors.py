"""What soapstone raises when something is wrong that its user can set right.

    ValueError
    └── SoapstoneError
        ├── TopologyError     the machines
        ├── GraphError        the operator graph, or a hand-written list of tasks
        ├── StrategyError     a configuration or a strategy
        ├── CaptureError      the model, its inputs or its loss
        └── RankError         the processes of a distributed run
            └── LostRankError     one of them is gone, or does not come

A message says what is wrong, where, and what to do.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_HIDDEN = re.compile(  # control characters, characters that change the direction of text, and surrogates
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with a visible symbol in place of each character that a terminal would obey or cannot print."""
    return _HIDDEN.sub(lambda found: _sign(ord(found[0])), text)


def _sign(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


class SoapstoneError(ValueError):
    """The base of all errors that soapstone raises on bad input. Control characters in its message are made visible."""

    def __str__(self) -> str:
        return printable(super().__str__())


class TopologyError(SoapstoneError):
    """The machines are described wrongly."""


class GraphError(SoapstoneError):
    """An operator graph or a list of tasks does not hold together."""


class StrategyError(SoapstoneError):
    """A configuration is illegal, or a strategy does not fit its graph or topology."""


class CaptureError(SoapstoneError):
    """A model cannot be captured."""


class RankError(SoapstoneError):
    """The processes of a run do not agree, or are too few or too many."""


class LostRankError(RankError):
    """Another rank is gone, or does not come."""


def meant(name: object, known: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is not known: "did you mean lenet?" where one is near, else what is given."""
    names = {known_name.lower(): known_name for known_name in known}
    close = get_close_matches(str(name).lower(), names, 1, cutoff=0.7)
    return f"did you mean {names[close[0]]}?" if close else otherwise
