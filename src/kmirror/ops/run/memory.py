"""Keep an engine's memory small however long it runs: glibc's malloc is configured before the first thread starts."""

from __future__ import annotations

import ctypes
from contextlib import suppress

#: Constants of malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
#: Larger blocks are mapped on their own, and returned to the system when they are freed.
_LARGE_BYTES = 128 * 1024


def keep_memory_small() -> None:
    """Limit glibc to two arenas and have it return large blocks at once; another C library is left alone.

    By default threads get up to eight arenas for each core, and an arena seldom returns memory; each HTTP request is
    answered in a thread of its own.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
