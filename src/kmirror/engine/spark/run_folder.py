"""The temporary folder of one Spark run: sockets, process ids, what the JVM unpacks.

A run that is killed cannot clean up. So each run holds a lock on a file in its folder, and the next run on this machine
removes the folders whose lock is free. Other users may put anything into the temporary folder, so only what is this
user's own is opened, and nothing that opening would wait for.

Programs that clean temporary folders leave alone what is locked (systemd-tmpfiles) or young. What is removed all the
same is noticed (`FolderWatch`): without it Spark goes on, but starts nothing any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kmirror.errors import KmirrorError

_PREFIX = "kmirror-run-"
_LOCK = "lock"
#: What Spark creates once and never looks for again: its blocks, and what new executors fetch.
_NEEDED = ("blockmgr-*", "blockmgr-*/*", "workers-*.zip")
#: Cleaners spare what is younger than some hours or days.
_TOUCH_SECONDS = 1800.0


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """Yield a new folder, removed at the end; first remove those of killed runs.

    Raises KmirrorError: there is no place for it.
    """
    try:
        remove_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise KmirrorError(
            f"there is no temporary folder for Spark: {error.strerror}", "set TMPDIR to a folder that can be written to"
        ) from None
    try:
        with (folder / "new-lock").open("wb") as lock, _locked(folder):
            # The file gets its final name when it is locked, so that no other run takes the folder for abandoned.
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class FolderWatch:
    """Keep what Spark needs in a run's folder from looking old, and notice when it is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = {folder / _LOCK}
        self._touched_at = time.monotonic()

    def missing(self) -> Path | None:
        """Return something that was there and no longer is; None in the normal case."""
        for path in self._seen:
            if not path.exists():
                return path if self._folder.exists() else self._folder
        for pattern in _NEEDED:
            self._seen.update(self._folder.glob(pattern))
        if time.monotonic() - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = time.monotonic()
            for path in (self._folder, *self._folder.rglob("*")):
                with contextlib.suppress(OSError):
                    os.utime(path, follow_symlinks=False)
        return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH)
        yield
    finally:
        os.close(opened)


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
