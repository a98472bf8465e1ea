"""Plain weights files, damaged, and loaded by `parallel.load_weights`: those that `export-weights` writes, and
safetensors that other programs write. The latter have no checksum: damage to their numbers makes *another* valid file,
which must be read as it says."""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

import soapstone as ss
from soapstone.runtime.checkpoints import write_weights
from soapstone.runtime.transports.threads import alone

from .mutations import BYTES, Damage, Tree, joined_with
from .tally import ANOTHER, HARMLESS, SILENT, Tally
from .trying import Judge, try_all

TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "F16": np.float16, "U8": np.uint8}


def weights(count: int, seed: int) -> Tally:
    """Files that `export-weights` wrote."""
    tally = Tally()
    for number, suffix in enumerate((".safetensors", ".pt")):
        _try_weights(tally, suffix, True, count // 2, seed + number)
    return tally


def foreign_weights(count: int, seed: int) -> Tally:
    """safetensors without a checksum."""
    tally = Tally()
    _try_weights(tally, ".safetensors", False, count, seed)
    return tally


def _try_weights(tally: Tally, suffix: str, is_ours: bool, count: int, seed: int) -> None:
    training, (state, other) = _training(), (_model(number).state_dict() for number in (1, 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"w{suffix}"
        raw, another = (_file(path, each, is_ours) for each in (state, other))
        damages: dict[str, Damage] = {**BYTES, "joined with another": joined_with({"other": another})}
        damages |= _of_header(raw) if suffix == ".safetensors" else _of_records(raw)

        def judge(changed: bytes) -> str:
            path.write_bytes(changed)
            before = {name: tensor.clone() for name, tensor in training.state_dict().items()}
            try:
                training.load_weights(path)
            except ss.SoapstoneError:
                assert _same(training.state_dict(), before), "a load that was refused changes weights"
                raise
            found = training.state_dict()
            if _same(found, state):
                return HARMLESS
            if changed == another:
                return ANOTHER if _same(found, other) else SILENT
            return ANOTHER if not is_ours and _same(found, _as_said(changed, found)) else SILENT

        anew: Judge = lambda changed: _from_zero(training, judge, changed)  # noqa: E731
        try_all(tally, damages, raw, anew, count, seed, f"{suffix} ")


def _from_zero(training: ss.runtime.Parallel, judge: Judge, changed: bytes) -> str:
    """So that a load which does nothing is seen."""
    training.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in training.state_dict().items()})
    return judge(changed)


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    for buffer in model.buffers():
        buffer.data += seed
    return model


def _training() -> ss.runtime.Parallel:
    work = ss.Workload(
        _model(0), (torch.randn(4, 6),), loss=nn.functional.cross_entropy, targets=(torch.randint(0, 4, (4,)),)
    )
    graph, topology = ss.capture(work), ss.Topology.parse("cpu:1x1")
    return ss.parallelize(work, graph, topology, ss.baselines.data_parallel(graph, topology), transport=alone())


def _file(path: Path, state: Mapping[str, torch.Tensor], is_ours: bool) -> bytes:
    if not is_ours:
        return save(dict(state), {"format": "pt"})
    write_weights(path, state)
    return path.read_bytes()


def _same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(_bits(one[name]) == _bits(other[name]) for name in one)


def _bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _as_said(raw: bytes, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a safetensors file says, read by hand, in the model's types."""
    size = int.from_bytes(raw[:8], "little")
    header, found = json.loads(raw[8 : 8 + size]), {}
    for name, row in header.items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in row["data_offsets"])
            values = torch.from_numpy(np.frombuffer(raw[start:end], TYPES[row["dtype"]]).copy()).reshape(row["shape"])
            found[name] = values.to(own[name].dtype)
    return found


def _of_header(raw: bytes) -> dict[str, Damage]:
    size = int.from_bytes(raw[:8], "little")
    text, rest = raw[8 : 8 + size], raw[8 + size :]
    inside = {"a bit": BYTES["a bit"], **Tree(json.loads(text)).damages}

    def of(damage: Damage) -> Damage:
        def change(whole: bytes, rng: random.Random) -> bytes:
            changed = damage(text, rng)
            changed += b" " * (-len(changed) % 8)
            return len(changed).to_bytes(8, "little") + changed + rest

        return change

    return {f"header: {kind}": of(damage) for kind, damage in inside.items()}


def _of_records(raw: bytes) -> dict[str, Damage]:
    """Of torch's zip: members changed under their old CRC, exchanged, missing, or twice."""
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}

    def change(whole: bytes, rng: random.Random) -> bytes:
        name = rng.choice([name for name in members if members[name]])
        place = whole.find(members[name])
        found = BYTES["a bit"](members[name], rng)
        return whole[:place] + found + whole[place + len(found) :]

    def remove(whole: bytes, rng: random.Random) -> bytes:
        gone = rng.choice([*members])
        return _zip([(name, data) for name, data in members.items() if name != gone])

    return {"record: a bit": change, "record: removed": remove}


def _zip(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()
