"""Ways to damage any file: its bytes, and the values of one that is JSON or YAML."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.mutations import ONLY_YAML, VALUES, WHOLE, places_in, with_text

Damage = Callable[[bytes, random.Random], bytes]

SHORT = (1, 4, 64, 256)  # bytes
NAMES = ("", "a", "\u0661", "\U0001f600", "e\u0301", "\u202e", "x" * 300, "__proto__", "name\n", "*", "0", "nul\0")


def bit(raw: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]


def cut_short(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def made_longer(raw: bytes, rng: random.Random) -> bytes:
    return raw + rng.choice((b" ", b"\n", b"\0" * 8, b"{}", b"x", raw, rng.randbytes(rng.choice(SHORT))))


def replaced(raw: bytes, rng: random.Random) -> bytes:
    start, end = _block(raw, rng)
    return raw[:start] + rng.choice((rng.randbytes(end - start), bytes(end - start))) + raw[end:]


def removed(raw: bytes, rng: random.Random) -> bytes:
    start, end = _block(raw, rng)
    return raw[:start] + raw[end:]


def repeated(raw: bytes, rng: random.Random) -> bytes:
    start, end = _block(raw, rng)
    return raw[:end] + raw[start:]


def exchanged(raw: bytes, rng: random.Random) -> bytes:
    size = min(rng.choice(SHORT), len(raw) // 2)
    one = rng.randrange(len(raw) - 2 * size + 1)
    other = rng.randrange(one + size, len(raw) - size + 1)
    return raw[:one] + raw[other : other + size] + raw[one + size : other] + raw[one : one + size] + raw[other + size :]


def _block(raw: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(raw))
    return start, min(len(raw), start + rng.choice(SHORT))


def another_kind(raw: bytes, rng: random.Random) -> bytes:
    return rng.choice([*WHOLE.values()])


def joined_with(others: Mapping[str, bytes]) -> Damage:
    """The beginning of a file and the end of another good one of its kind, or all of that."""

    def join(raw: bytes, rng: random.Random) -> bytes:
        other = rng.choice([*others.values()])
        place = rng.choice((0, 0, *(rng.randrange(len(raw)) for _ in range(4))))
        return raw[:place] + other[place:]

    return join


BYTES: dict[str, Damage] = {
    "a bit": bit,
    "cut short": cut_short,
    "made longer": made_longer,
    "bytes replaced": replaced,
    "bytes removed": removed,
    "bytes repeated": repeated,
    "bytes exchanged": exchanged,
    "a file of another kind": another_kind,
}


class Tree:
    """Damage to what a JSON text says; the text stays JSON for the most part, and is YAML, too."""

    def __init__(self, data: Any, *, is_yaml: bool = False) -> None:
        self.data = data
        self.places = [place for place in places_in(data) if place]
        self.values = [*VALUES.values(), *(ONLY_YAML.values() if is_yaml else ())]

    @property
    def damages(self) -> dict[str, Damage]:
        return {
            "a value replaced": self._replaced,
            "a number changed": self._number,
            "a key or an item removed": self._removed,
            "a key renamed": self._renamed,
            "a key twice": self._twice,
            "two values exchanged": self._exchanged,
            "nested once more": self._nested,
        }

    def _replaced(self, raw: bytes, rng: random.Random) -> bytes:
        return with_text(self.data, rng.choice(self.places), rng.choice(self.values)).encode()

    def _number(self, raw: bytes, rng: random.Random) -> bytes:
        data = copy.deepcopy(self.data)
        places = [place for place in self.places if type(_at(data, place)) in (int, float)]
        place = rng.choice(places or self.places)
        old = _at(data, place)
        number = old if type(old) in (int, float) else 1
        options = (number + 1, number - 1, number * 10, -number, number / 3, float(number), 2**31, 2**63, str(number))
        _container(data, place)[place[-1]] = rng.choice(options)
        return _written(data)

    def _removed(self, raw: bytes, rng: random.Random) -> bytes:
        data, place = copy.deepcopy(self.data), rng.choice(self.places)
        del _container(data, place)[place[-1]]
        return _written(data)

    def _renamed(self, raw: bytes, rng: random.Random) -> bytes:
        data, place = copy.deepcopy(self.data), self._key(rng)
        inside = _container(data, place)
        rows = list(inside.items())
        new = rng.choice((*NAMES, place[-1] + " ", place[-1].upper(), place[-1][:-1], rng.choice([*inside])))
        inside.clear()
        inside.update((new if key == place[-1] else key, value) for key, value in rows)
        return _written(data)

    def _twice(self, raw: bytes, rng: random.Random) -> bytes:
        """The second time with another value or the same."""
        place = self._key(rng)
        inside = _container(self.data, place)
        value = json.dumps(rng.choice([*inside.values(), inside[place[-1]]]))
        rows = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in inside.items()]
        rows.insert(rng.randrange(len(rows) + 1), f"{json.dumps(place[-1])}: {value}")
        text = "{" + ", ".join(rows) + "}"
        return (with_text(self.data, place[:-1], text) if place[:-1] else text).encode()

    def _exchanged(self, raw: bytes, rng: random.Random) -> bytes:
        data = copy.deepcopy(self.data)
        one, other = rng.choice(self.places), rng.choice(self.places)
        if one[: len(other)] == other or other[: len(one)] == one:
            one, other = self.places[0], self.places[-1]
        if one[: len(other)] == other or other[: len(one)] == one:
            return self._nested(raw, rng)
        first, second = _at(data, one), _at(data, other)
        _container(data, one)[one[-1]], _container(data, other)[other[-1]] = second, first
        return _written(data)

    def _nested(self, raw: bytes, rng: random.Random) -> bytes:
        place = rng.choice(self.places)
        depth, text = rng.choice((1, 1, 3, 40, 3000)), json.dumps(_at(self.data, place))
        opening, closing = rng.choice((("[", "]"), ('{"a": ', "}")))
        return with_text(self.data, place, opening * depth + text + closing * depth).encode()

    def _key(self, rng: random.Random) -> tuple[Any, ...]:
        return rng.choice([place for place in self.places if isinstance(place[-1], str)])


def _written(data: Any) -> bytes:
    return json.dumps(data).encode()


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        data = data[key]
    return data


def _container(data: Any, place: tuple[Any, ...]) -> Any:
    return _at(data, place[:-1])
