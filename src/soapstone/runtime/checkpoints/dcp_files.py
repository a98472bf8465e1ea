"""The data files of a torch.distributed.checkpoint folder: the output of several `torch.save`, one after another."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch

from ...errors import SoapstoneError
from ...files import opened
from .dcp_metadata import Location
from .index import DamagedError

MOST = 2**26  # bytes of something that is not a tensor
_AROUND = 2**20  # the most bytes that torch.save may add to those of a tensor


def file_of(rank: int) -> str:
    return f"__{rank}_0.distcp"


def write_file(path: Path, values: Iterable[Any]) -> list[tuple[int, int]]:
    """Write tensors and other values, and wait until they are on disk. Returns the offset and the length of each."""
    found = []
    with path.open("wb") as file:
        for value in values:
            start = file.tell()
            torch.save(_alone(value), file)
            found.append((start, file.tell() - start))
        file.flush()
        os.fsync(file.fileno())
    return found


def _alone(value: Any) -> Any:
    """The value; a tensor that is a view is copied, since torch would write the whole storage."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().to("cpu").contiguous()
    return plain if plain.untyped_storage().nbytes() == plain.nbytes else plain.clone()


def read_tensor(folder: Path, place: Location, dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    """A box of a tensor. Raises DamagedError if the file does not have it at this place."""
    size = dtype.itemsize * torch.Size(sizes).numel()
    if not size <= place.length <= size + _AROUND:
        raise DamagedError(f"cannot read {folder / place.file}: a tensor of {size} bytes is not in {place.length}")
    found = _read(folder, place)
    if not isinstance(found, torch.Tensor) or found.layout != torch.strided or found.is_meta:
        raise DamagedError(f"cannot read {folder / place.file}: it has something else in place of a tensor")
    if found.dtype != dtype or tuple(found.shape) != sizes:
        raise DamagedError(f"cannot read {folder / place.file}: a tensor has another type or shape than its metadata")
    return found.detach()


def read_value(folder: Path, place: Location) -> Any:
    """A value that is not a tensor. Raises DamagedError if it cannot be read."""
    if place.length > MOST:
        raise DamagedError(f"cannot read {folder / place.file}: a value has {place.length} bytes")
    return _read(folder, place)


def _read(folder: Path, place: Location) -> Any:
    path = folder / place.file
    try:
        with opened(path) as file:
            if place.offset + place.length > os.fstat(file.fileno()).st_size:
                raise DamagedError(f"cannot read {path}: it is shorter than its metadata says")
            file.seek(place.offset)
            data = BytesIO(file.read(place.length))
        _check(data)
        return torch.load(data, weights_only=True, map_location="cpu")
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror or error}") from None
    except DamagedError:
        raise
    except SoapstoneError as error:
        raise DamagedError(f"cannot read {path}: {error}") from None
    except Exception as error:  # a hostile file may cause any error
        said = str(error).split("\n")[0][:120]
        raise DamagedError(f"cannot read {path}: a part of it is damaged ({said}); use another folder") from None


def _check(data: BytesIO) -> None:
    """Raise SoapstoneError if a checksum of the zip archive is wrong; torch.load does not check them."""
    try:
        with ZipFile(data) as archive:
            if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
                raise SoapstoneError("a part of it is compressed, which torch.save does not do; use another folder")
            is_whole = archive.testzip() is None
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError):
        is_whole = False
    if not is_whole:
        raise SoapstoneError(
            "a part of it is damaged, or was written without checksums (torch.serialization.set_crc32_options(False)); "
            "use another folder"
        )
    data.seek(0)
