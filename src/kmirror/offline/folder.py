"""A folder of a stopped broker, by its descriptor: nothing in it can lead us elsewhere.

Who may write the folder may put links into it. So names are relative to the open folder and have at most one folder in
front; links are never followed, files must be regular ones with one name, and new files are created exclusively. Root
acts as the folder's owner: each operation switches this thread's file system user (`setfsuid`), and no other thread's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kmirror.errors import RefusedError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a FIFO must not wait; it does nothing to regular files.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: What opening and checking answer for links, files with several names, FIFOs, devices.
_NOT_PLAIN = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO})
_AS_BROKER = "run as the broker's user"
#: Brokers nest folders two deep.
_DEEPEST = 8
_libc = ctypes.CDLL(None)


def refused(error: OSError) -> RefusedError:
    """Return the refusal for a file that cannot be used."""
    hint = "brokers make no such file: find out who did" if error.errno in _NOT_PLAIN else _AS_BROKER
    return RefusedError(f"{error.filename}: {error.strerror}", hint)


def is_path_inside(path: str) -> bool:
    """Return whether a path names a file in a folder, or in a folder in it."""
    parts = path.split("/")
    return len(parts) <= 2 and not any(part in {"", ".", ".."} or "\0" in part for part in parts)


class Folder:
    """An open folder; `path` is for messages only. Every method raises OSError with the whole path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, _FOLDER)
        status = os.fstat(self._descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self.owner = (status.st_uid, status.st_gid)

    @property
    def is_anothers(self) -> bool:
        """Whether we are root, and act as another user here."""
        return os.geteuid() == 0 and self.owner[0] != 0

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Return a file's status, a link's own; None if there is nothing."""
        with suppress(FileNotFoundError), self._at(name) as (folder, last):
            return os.stat(last, dir_fd=folder, follow_symlinks=False)
        return None

    def exists(self, name: str) -> bool:
        """Return whether there is anything of that name."""
        return self.status(name) is not None

    def size(self, name: str) -> int | None:
        """Return a file's size, None if there is none."""
        status = self.status(name)
        return None if status is None else status.st_size

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Open a file and return its descriptor."""
        with self._at(name) as (folder, last):
            descriptor = os.open(last, flags | _FILE, mode, dir_fd=folder)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                os.close(descriptor)
                raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        return descriptor

    def reader(self, name: str) -> BinaryIO:
        """Open a file to read."""
        return os.fdopen(self.open(name), "rb")

    def changer(self, name: str) -> BinaryIO:
        """Open a file to read and change."""
        return os.fdopen(self.open(name, os.O_RDWR), "r+b")

    def creator(self, name: str) -> BinaryIO:
        """Create a file; what has its name is removed first."""
        self.remove(name)
        return os.fdopen(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")

    def text(self, name: str) -> str | None:
        """Return a file's text, None if it does not exist. Raises ValueError too if it is not text."""
        try:
            with self.reader(name) as file:
                return file.read().decode()
        except FileNotFoundError:
            return None

    def write_text(self, name: str, text: str, unfinished: str) -> None:
        """Replace a file's content atomically and durably, or create the file; owner and mode stay."""
        with self.creator(unfinished) as file:
            file.write(text.encode())
            file.flush()
            if before := self.status(name):
                with self._acting(unfinished):
                    os.fchmod(file.fileno(), before.st_mode & 0o7777)
                    made = os.fstat(file.fileno())
                    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                        os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fsync(file.fileno())
        self.replace(unfinished, name)
        self.sync(name)

    def replace(self, name: str, target: str) -> None:
        """Rename a file; a target that exists is replaced."""
        with self._at(name) as (folder, last), self._at(target) as (to_folder, to_last):
            os.rename(last, to_last, src_dir_fd=folder, dst_dir_fd=to_folder)

    def remove(self, name: str) -> None:
        """Remove a file or link if it exists."""
        with suppress(FileNotFoundError), self._at(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def set_time(self, name: str, time_ns: int) -> None:
        """Set a file's times."""
        with self._at(name) as (folder, last):
            os.utime(last, ns=(time_ns, time_ns), dir_fd=folder, follow_symlinks=False)

    def is_ours(self, name: str) -> bool:
        """Return whether a file, or the folder itself (`.`), belongs to the user we act as, and can be written."""
        with self._at(name) as (folder, last):
            status = os.stat(last, dir_fd=folder, follow_symlinks=False)
            acting = self.owner[0] if os.geteuid() == 0 else os.geteuid()
            writable = os.access(last, os.W_OK, dir_fd=folder, effective_ids=True)
            return writable and acting in {0, status.st_uid}

    def free_bytes(self) -> int:
        """Return the free space that is not reserved for root."""
        status = os.statvfs(self._descriptor)
        return status.f_bavail * status.f_frsize

    def sync(self, name: str) -> None:
        """Sync the names in the folder of a file to disk."""
        with self._at(name) as (folder, _):
            os.fsync(folder)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in it, or in a folder in it."""
        with self._at(f"{folder}/." if folder else ".") as (descriptor, _):
            return sorted(os.listdir(descriptor))

    def statuses(self) -> dict[str, os.stat_result]:
        """Return by path the status of everything below it that is not a folder; links are not followed."""
        with self._acting(""):
            return dict(_below(self._descriptor, "", 0))

    @contextmanager
    def _at(self, name: str) -> Iterator[tuple[int, str]]:
        """Act as the owner on a name: the descriptor of its folder, and its last part."""
        above, _, last = name.rpartition("/")
        with self._acting(name):
            if "/" in above or (name != "." and not is_path_inside(name.removesuffix("/."))):
                raise OSError(errno.EINVAL, "is not a path in the log directory")
            if not above:
                yield self._descriptor, last
                return
            try:
                descriptor = os.open(above, _FOLDER, dir_fd=self._descriptor)
            except OSError as error:
                raise self._explained(error, above) from None
            try:
                yield descriptor, last
            finally:
                os.close(descriptor)

    @contextmanager
    def _acting(self, name: str) -> Iterator[None]:
        """Act as the owner if we are root, and put the whole path into errors."""
        switched = self.is_anothers
        try:
            if switched:
                _act_as(*self.owner)
            yield
        except OSError as error:
            raise self._explained(error, name) from None
        finally:
            if switched:
                _act_as(os.geteuid(), os.getegid())

    def _explained(self, error: OSError, name: str) -> OSError:
        if str(error.filename).startswith("/"):
            return error
        what = "is a link, or not a plain file or folder" if error.errno in _NOT_PLAIN else error.strerror
        return OSError(error.errno, what, str(self.path / name))


@contextmanager
def without_groups() -> Iterator[None]:
    """Put root's further groups aside: they would open files to whoever it acts as. Raises RefusedError."""
    groups = os.getgroups()
    try:
        os.setgroups([])
    except OSError as error:
        raise RefusedError(f"root cannot act as the broker's user here: {error.strerror}", _AS_BROKER) from None
    try:
        yield
    finally:
        os.setgroups(groups)


def _act_as(user: int, group: int) -> None:
    """Set the user and group with which this thread uses files. Raises RefusedError."""
    # the group first, as only root may change it; an impossible id changes nothing and returns the present one
    for set_id, wanted in ((_libc.setfsgid, group), (_libc.setfsuid, user)):
        set_id(wanted)
        if set_id(-1) != wanted:
            raise RefusedError(f"root cannot act as user {user} here", _AS_BROKER)


def _below(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    if depth > _DEEPEST:
        raise OSError(errno.ELOOP, "holds folders in folders")
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    yield from _below(inner, f"{name}/", depth + 1)
                finally:
                    os.close(inner)
            else:
                yield name, entry.stat(follow_symlinks=False)
