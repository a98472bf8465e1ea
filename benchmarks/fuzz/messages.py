"""Damages messages between ranks. Any difference counts as silent. Forged messages have a right checksum, so the reader
cannot recognize them: it must refuse them with an error of its own, or read them."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import torch

import soapstone as ss
from soapstone.runtime.transports import encoding

from .mutations import BYTES, Damage, Tree, joined_with
from .tally import ANOTHER, HARMLESS, SILENT, Tally
from .trying import try_all

START = struct.Struct("<8sQQQ")


def messages(count: int, seed: int) -> Tally:
    """Numbers and tensors, a topology, and a dict with all the other types."""
    tally = Tally()
    torch.manual_seed(0)
    topology = ss.Topology.parse("cpu:1x2")
    values = [
        {"step": 12, "lr": 0.1, "weights": [torch.randn(7, 3), torch.arange(5), torch.tensor(True)]},
        (topology, ss.Configuration({"sample": 2}, (0, 1)), {"names": ("a", "b"), "seen": {1, 2}}),
        {(1, 2): b"\0\1\2", "types": [torch.float32, frozenset({"x"})], "empty": [(), torch.zeros(0, 4), None, True]},
    ]
    for number, value in enumerate(values):
        raw = bytes(encoding.encode(value))
        others = {"other": bytes(encoding.encode(values[number - 1]))}
        forged: set[bytes] = set()
        damages = {**BYTES, "joined with another": joined_with(others), "a length moved": _length_moved}
        damages |= {f"forged: {kind}": _signed(raw, damage, forged) for kind, damage in _inside(raw).items()}

        def judge(changed: bytes, value: Any = value, forged: set[bytes] = forged, others: Any = others) -> str:
            found = encoding.decode(changed)
            if _same(found, value):
                return HARMLESS
            return ANOTHER if changed in forged or changed == others["other"] else SILENT

        try_all(tally, damages, raw, judge, count // len(values), seed + number)
    return tally


def _same(one: Any, other: Any) -> bool:
    """Values are the same if their encodings are; the order of sets may differ."""
    return repr(one) == repr(other) and (
        encoding.encode(one)[START.size :] == encoding.encode(other)[START.size :] or one == other
    )


def _inside(raw: bytes) -> dict[str, Damage]:
    header = START.unpack_from(raw)[1]
    return BYTES | Tree(json.loads(raw[START.size : START.size + header])).damages


def _signed(raw: bytes, damage: Damage, forged: set[bytes]) -> Damage:
    """Damage to the JSON of a message, under a right checksum."""
    size = START.unpack_from(raw)[1]
    text, body = raw[START.size : START.size + size], raw[START.size + size :]

    def sign(whole: bytes, rng: random.Random) -> bytes:
        changed = damage(text, rng)
        found = bytes(encoding.framed(changed, [body]))
        if changed != text:
            forged.add(found)
        return found

    return sign


def _length_moved(raw: bytes, rng: random.Random) -> bytes:
    """The JSON begins to end elsewhere; the whole has the same length."""
    kind, header, body, checksum = START.unpack_from(raw)
    move = rng.choice((-1, 1)) * rng.choice((1, 8, 64))
    return START.pack(kind, max(0, header + move), max(0, body - move), checksum) + raw[START.size :]
