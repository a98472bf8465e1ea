"""One damage after the other, and what a reader makes of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from soapstone.errors import SoapstoneError
from tests.support.mutations import LONGEST, guarded

from .mutations import Damage
from .tally import REFUSED, TRACEBACK, Tally

Judge = Callable[[bytes], str]  # the outcome for a file's bytes; a SoapstoneError stands for REFUSED
UNTOUCHED = 50  # for this many damaged files, one more is left undamaged


def try_all(
    tally: Tally, damages: Mapping[str, Damage], good: bytes, judge: Judge, count: int, seed: int, of: str = ""
) -> None:
    """Damage a good file `count` times, and read it undamaged some more times."""
    rng = random.Random(seed)
    for number in range(count + max(1, count // UNTOUCHED)):
        kind = rng.choice([*damages]) if number < count else "none"
        raw = damages[kind](good, rng) if number < count else good
        outcome, why = _outcome(judge, raw)
        tally.add(kind, outcome, f"{of}{why}, {_shown(good, raw)}")


def _outcome(judge: Judge, raw: bytes) -> tuple[str, str]:
    try:
        with guarded():
            return judge(raw), ""
    except SoapstoneError as error:
        sentence = str(error)
        is_one = "\n" not in sentence and len(sentence) < LONGEST
        return (REFUSED, "") if is_one else (TRACEBACK, f"no sentence: {sentence!r:.200}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return TRACEBACK, f"{type(error).__name__}: {error!s:.200}"


def _shown(good: bytes, raw: bytes) -> str:
    """The first difference between two files."""
    same = next((i for i, (one, other) in enumerate(zip(good, raw)) if one != other), min(len(good), len(raw)))
    start = max(0, same - 20)
    return f"byte {same} of {len(good)}: {good[start : same + 40]!r} became {raw[start : same + 40]!r}"
