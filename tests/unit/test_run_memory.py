"""What the memory of an engine is made of after many threads have come and gone, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

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
#: glibc begins the memory of an arena at a multiple of 64 MB.
starts = re.findall(r"^([0-9a-f]+)-\\S+ rw-p \\S+ 00:00 0 *$", Path("/proc/self/maps").read_text(), re.M)
print(sum(int(start, 16) % (64 << 20) == 0 for start in starts))
"""


def arenas(how: str) -> int:
    """Return how many arenas threads got beside the first, in a process that got the option or did not."""
    found = subprocess.run([sys.executable, "-c", _THREADS, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


def test_threads_share_two_arenas() -> None:
    assert arenas("as it is") > 1
    assert arenas("small") <= 1
