"""What the C library's malloc keeps: glibc is configured before the first thread starts; another one is left alone."""

from __future__ import annotations

import ctypes
from contextlib import suppress

#: Constants of malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
#: Larger blocks are mapped on their own, and returned to the system when they are freed.
_LARGE_BYTES = 128 * 1024


def limit_arenas() -> None:
    """Limit glibc to two arenas: by default threads get up to eight for each core, and one seldom returns memory."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def return_large_blocks() -> None:
    """Have glibc return large blocks at once."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
