"""Values that ranks exchange arrive as they were sent. A value that cannot be sent or read raises one error on all
ranks."""

import math
import pickle
import struct
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soapstone import Configuration, Topology
from soapstone.errors import RankError
from soapstone.runtime.records import Happening, Record
from soapstone.runtime.transports import ThreadTransport, carried, encoding, run_threads
from soapstone.runtime.transports.encoding import decode, encode


@carried
class _Shade(Enum):
    DARK = "dark"
    LIGHT = 2


@carried
class _Point(NamedTuple):
    x: float
    tags: tuple[str, ...]


class _Stranger(NamedTuple):
    x: int


DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint8, torch.float8_e4m3fn]


def _tensor(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


NUMBERS = st.integers() | st.integers(-(2**4000), 2**4000) | st.floats()
KEYS = (
    st.none() | st.booleans() | NUMBERS | st.text() | st.binary() | st.sampled_from(list(_Shade)) | st.just(torch.int8)
)
HASHABLE = st.recursive(KEYS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=6)
TENSORS = st.builds(_tensor, st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES))
LEAVES = HASHABLE | TENSORS | st.builds(_Point, st.floats(), st.tuples(st.text()))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(HASHABLE, inner) | st.sets(HASHABLE),
    max_leaves=12,
)


def _same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down, with nan equal to itself and 0.0 not to -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bytes(_raw(a)) == bytes(_raw(b))
    if isinstance(a, float):
        return math.isnan(a) and math.isnan(b) if math.isnan(a) else struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(_same, a.items(), b.items()))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(_same(x, y) for y in b) for x in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _raw(tensor: torch.Tensor) -> list[int]:
    found: list[int] = tensor.reshape(-1).view(torch.uint8).tolist()
    return found


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_what_is_sent_arrives_the_same_to_the_type_and_bit(value: Any) -> None:
    assert _same(decode(encode(value)), value)


def test_what_the_runtime_sends_arrives_equal() -> None:
    record = Record([Happening(1, "run", "conv", 5, 9)], 0.25)
    row = Configuration({"n": 2}, (0, 1), shard="all", in_flight=3)
    value = {"t": Topology.parse("p100:2x2"), (1, 2): [record], "row": row, 0: "\udc80é"}
    assert decode(encode(value)) == value


def test_a_tensor_is_read_in_its_own_order_and_owns_its_memory() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    data = encode([wide.t(), wide.to(torch.complex64).conj(), torch.nn.Parameter(wide[:, 1])])
    turned, _, column = decode(data)
    turned += 1
    assert torch.equal(turned, wide.t() + 1)
    assert torch.equal(column, wide[:, 1])
    assert torch.equal(decode(data)[0], wide.t())


def test_numbers_of_numpy_arrive_as_those_of_python() -> None:
    found = decode(encode([np.float64(0.1), np.int32(7), np.bool_(True), np.float32(0.5)]))
    assert _same(found, [0.1, 7, True, 0.5])


UNSENDABLE = {
    "function": len,
    "class": RankError,
    "stranger": _Stranger(1),
    "array": np.zeros(2),
    "meta": torch.zeros(1, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "digits": 2**5000,
    "longdouble": np.longdouble(1),
    "text of a kind": type("Text", (str,), {})("x"),
}


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_cannot_be_sent_ends_on_all_ranks_with_one_sentence(value: Any) -> None:
    def on_rank(rank: int, transport: ThreadTransport) -> str:
        with pytest.raises(RankError) as error:
            transport.exchange([value] if rank == 1 else None)
        return str(error.value)

    first, second = run_threads(2, on_rank)
    assert first == second
    assert first.startswith("rank 1: a rank cannot send a ")
    assert "\n" not in first


def test_a_value_inside_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RankError, match="more than 32 containers"):
        encode(value)


MESSAGE = encode({"a": [1.5, (True, None)], (1, 2): torch.arange(5), "p": _Point(1.0, ("x",)), "s": _Shade.DARK})


@pytest.mark.parametrize("place", range(len(MESSAGE)))
def test_any_damaged_byte_is_refused(place: int) -> None:
    for bit in range(8):
        data = bytearray(MESSAGE)
        data[place] ^= 1 << bit
        with pytest.raises(RankError):
            decode(data)
    with pytest.raises(RankError):
        decode(MESSAGE[:place])


HOSTILE = [
    b"", b"1 2", b"{}", b"[" * 100_000, b'{"object":["RankError","x"]}', b'{"object":["Device",1]}', b'{"object":[]}',
    b'{"object":["Device",[],{},null,-1,0,0,0,0,"x"]}', b'{"object":["_Shade","NONE"]}', b'{"object":[["a"]]}',
    b'{"tensor":["float32",4]}', b'{"tensor":["qint8",0]}', b'{"tensor":["float32",-1]}', b'{"tensor":["load",0]}',
    b'{"tensor":["float32",0,1e400]}', b'{"tensor":["uint8",0,' + b"9" * 40 + b"]}", b'{"bytes":-1}', b'{"bytes":"x"}',
    b'{"dict":[[[]],[1]]}', b'{"dict":[[1],[]]}', b'{"dict":1}', b'{"set":[[]]}', b'{"tuple":5}', b'{"value":[1]}',
    b'{"__class__":1}', b'{"dtype":"load"}', b"9" * 5000, b'{"a":1,"b":2}', b"\xff",
    b'{"object":["Topology",[],[],[],[]]}',
    pickle.dumps({"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize("header", HOSTILE, ids=lambda header: str(header[:30]))
def test_hostile_json_is_refused(header: bytes) -> None:
    with pytest.raises(RankError):
        decode(encoding.framed(header, []))


def test_lengths_are_under_the_checksum() -> None:
    """The JSON ends elsewhere while the message has the same length: only the checksum shows that."""
    kind, header, body, checksum = encoding._START.unpack_from(MESSAGE)
    start = encoding._START.pack(kind, header + 1, body - 1, checksum)
    with pytest.raises(RankError, match="checksum is wrong"):
        decode(start + MESSAGE[encoding._START.size :])


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RankError):
        decode(data)
