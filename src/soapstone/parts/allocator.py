"""Keep freed memory in the process, where glibc allocates.

glibc gives large blocks back to the system when they are freed, and new ones cost a page fault every 4 KB: the same
convolution then takes up to twice as long, depending on what was allocated before it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_STEADY = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}  # where glibc's own adjusting ends
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}

_always = False  # the allocator is the process's, and cannot be asked


def keep_freed_memory() -> bool:
    """From now on; False where the allocator has no such setting."""
    global _always
    _always = _set(_KEEPING)
    return _always


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """For a while; then the system gets it back, unless it is kept from now on."""
    changed = _set(_KEEPING)
    try:
        yield
    finally:
        if changed and not _always:
            _set(_STEADY)
            ctypes.CDLL(None).malloc_trim(0)


def _set(options: dict[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(mallopt(option, value) == 1 for option, value in options.items())
