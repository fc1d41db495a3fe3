"""How an engine's memory stays small however long it runs: glibc's malloc is told before the first thread begins."""

from __future__ import annotations

import ctypes
from contextlib import suppress

#: Numbers of malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
#: Larger blocks are mapped on their own, and go back to the system when they are freed.
_LARGE_BYTES = 128 * 1024


def keep_memory_small() -> None:
    """Let glibc keep two arenas, and give large blocks back at once; with another C library nothing is done.

    By default threads get up to eight arenas for each core, and what an arena has taken it seldom gives back; every
    answer over HTTP is made in a thread of its own.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
