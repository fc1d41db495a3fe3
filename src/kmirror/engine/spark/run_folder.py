"""The temporary folder of one Spark run: sockets, process ids, what the JVM unpacks.

A run that is killed cannot clean up. So each run holds a lock on a file in its folder, and the next run on this machine
removes the folders whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "kmirror-run-"
_LOCK = "lock"


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """Yield a new folder, removed at the end; first remove those of killed runs."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / "new-lock").open("wb") as lock:
            # The file gets its final name when it is locked, so that no other run takes the folder for abandoned.
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the folders that killed runs of this user left behind."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
