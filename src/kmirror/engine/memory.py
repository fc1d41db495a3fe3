"""What a process may use: what the C library's malloc keeps, and how many files are open.

glibc is configured before the first thread starts; another library is left alone.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

#: Constants of malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
#: Larger blocks are mapped on their own, and returned to the system when they are freed.
_LARGE_BYTES = 128 * 1024
_MANY_FILES = 65_536


def limit_arenas() -> None:
    """Limit glibc to two arenas: by default threads get up to eight for each core, and one seldom returns memory."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def return_large_blocks() -> None:
    """Have glibc return large blocks at once."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def allow_many_files() -> None:
    """Let this process, and those that it starts, have many connections, as far as its user may: each is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
