"""The temporary folder of one Spark run: sockets, process ids, what the JVM unpacks.

A run that is killed cannot clean up. So each run holds a lock on a file in its folder, and the next run on this machine
removes the folders whose lock is free. Other users may put anything into the temporary folder, so only what is this
user's own is opened, and nothing that opening would wait for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
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
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _own_lock(folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_lock(folder: Path) -> Iterator[int]:
    """Open the lock of a folder. Raises OSError: there is none, or it or the folder is not a plain one of this user."""
    with contextlib.ExitStack() as opened:
        outer = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, outer)
        lock = os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=outer)
        opened.callback(os.close, lock)
        if not stat.S_ISREG(os.fstat(lock).st_mode) or {os.fstat(one).st_uid for one in (outer, lock)} != {
            os.geteuid()
        }:
            raise PermissionError(folder)
        yield lock
