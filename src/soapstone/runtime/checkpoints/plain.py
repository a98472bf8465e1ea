"""A whole model's weights in one file that other programs read: safetensors, or what `torch.load` takes.

torch's files are zip archives, which have a CRC of each tensor. safetensors has no checksum, so Soapstone puts one into
the metadata, which other programs ignore. Files from other programs are read without one.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from xxhash import xxh3_128

from ...errors import SoapstoneError
from ...files import opened, replacing
from .choosing import chosen_alone
from .storage import Checkpoint

SAFETENSORS, TORCH = (".safetensors",), (".pt", ".pth", ".bin")
_CHECKSUM = "soapstone xxh3_128"
_UNREADABLE = (  # what the readers raise if a file is damaged
    SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError,
    AssertionError, MemoryError, OverflowError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def whole_state(folder: Path) -> dict[str, torch.Tensor]:
    """The state dict of the newest checkpoint of a folder, under the model's own names."""
    return state_of_checkpoint(chosen_alone(folder, last_good=False)[0])


def state_of_checkpoint(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The state dict of a checked checkpoint."""
    with checkpoint:
        index = checkpoint.index
        counters = {name: torch.tensor(count) for name, count in index.counters.items()}
        stored = {own: checkpoint.whole(f"model/{own}") for own in {*index.names.values()} - {*counters}}
    return {name: (counters | stored)[own] for name, own in index.names.items()}


def check_kind(path: Path) -> None:
    """Raise SoapstoneError unless a file's name says what it is."""
    if path.suffix not in SAFETENSORS + TORCH:
        raise SoapstoneError(f"{path} is neither a .safetensors nor a .pt file; name it so")


def write_weights(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write a state dict whole or not at all, as the file's name says. Raises SoapstoneError where it cannot be."""
    check_kind(path)
    with replacing(path) as half:
        try:
            if path.suffix in TORCH:
                with half.open("wb") as file:  # torch takes no path that begins with a dot
                    torch.save(dict(state), file)
            else:
                save_file(_apart(state), half, {"format": "pt", _CHECKSUM: _checksum(state)})
        except (SafetensorError, RuntimeError) as error:
            raise SoapstoneError(f"cannot write {path}: {error}; choose another folder") from None


def _apart(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor with memory of its own: tied weights are written under all of their names."""
    seen: set[int] = set()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return found


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The state dict of a plain file; nothing but tensors is ever unpickled. Raises SoapstoneError where it is not
    one."""
    check_kind(path)
    try:
        opened(path).close()  # neither reader below may open a pipe, which would wait for somebody to write
        state: Any = _from_safetensors(path) if path.suffix in SAFETENSORS else _from_torch(path)
    except OSError as error:
        raise SoapstoneError(f"cannot read {path}: {error.strerror or error}") from None
    except SoapstoneError:
        raise
    except _UNREADABLE as error:
        said = str(error).split("\n")[0][:200]
        raise SoapstoneError(f"{path} holds no plain weights ({said}); save a state_dict of tensors") from None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise SoapstoneError(f"{path} holds more than tensors by name; save a plain state_dict")
    return state


def _from_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
        said = (file.metadata() or {}).get(_CHECKSUM)
    if said is not None and said != _checksum(state):
        raise SoapstoneError(f"{path} is damaged: its checksum is not that of its tensors; export it anew")
    return state


def _checksum(state: Mapping[str, torch.Tensor]) -> str:
    """The checksum of all names, types, shapes and bytes."""
    digest = xxh3_128()
    for name, tensor in sorted(state.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(repr((name, str(plain.dtype), tuple(plain.shape))).encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _from_torch(path: Path) -> Any:
    """Read a torch file, and check its CRCs: torch does not if it maps a file into memory."""
    state = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    with zipfile.ZipFile(path) as file:
        wrong = file.testzip()
    if wrong is not None:
        raise SoapstoneError(f"{path} is damaged: the CRC of {wrong.rpartition('/')[2]!r} is wrong; save it anew")
    return state
