"""What the memory of an engine is made of after many threads have come and gone, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THREADS = """
import ctypes, re, sys, threading
from pathlib import Path
from kmirror.ops.run.run import keep_memory_small

if sys.argv[1] == "small":
    keep_memory_small()
libc, all_there = ctypes.CDLL(None), threading.Barrier(12)
libc.malloc.restype = ctypes.c_void_p

def work():
    all_there.wait()
    libc.malloc(50_000)
    all_there.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# glibc reserves 64 MB for an arena, at a multiple of that, and makes its beginning usable
lines = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (\\S+)", Path("/proc/self/maps").read_text(), re.M)
maps = [(int(start, 16), int(end, 16), kind) for start, end, kind in lines]
whole = 64 << 20
pairs = zip(maps, maps[1:])
print(sum(a[0] % whole == 0 and a[2] == "rw-p" and b[2] == "---p" and b[1] == a[0] + whole for a, b in pairs))
"""


def arenas(how: str) -> int:
    """Return how many arenas threads got beside the first, in a process that got the option or did not."""
    found = subprocess.run([sys.executable, "-c", _THREADS, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.slow
def test_threads_share_two_arenas() -> None:
    assert arenas("as it is") > 1
    assert arenas("small") <= 1
