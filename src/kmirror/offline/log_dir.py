"""A broker's log directory on disk: its owner, its lock, its partition folders.

A running broker holds a POSIX lock on the file `.lock` (Java's FileChannel.tryLock). Our commands take the same lock,
so that no broker starts meanwhile. They do not delete the file: a broker that has opened it must not lock a file that
no longer exists.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.properties import parse_properties
from kmirror.errors import RefusedError, UsageError

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
METADATA = "partition.metadata"

#: Our files are in the log directory itself, where brokers only look at folders; an unknown folder would fail startup.
OWN_PREFIX = "kmirror-cut-"

_LOCK = ".lock"
_META = "meta.properties"
_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)")
_MOVING = re.compile(r"(?P<name>.+)\.[0-9a-f]{32}-(?P<kind>delete|future)")
_SEGMENT_FILE = re.compile(r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)")
#: Files that a broker may leave when it stops, and ignores later: segments to delete, checkpoints being written.
_LEFT_OVER = re.compile(r"[0-9]{20}\.[a-z]+\.deleted|(leader-epoch-checkpoint|partition\.metadata)\.tmp")


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory, and the broker in its `meta.properties`."""

    path: Path
    cluster_id: str
    node_id: str

    def text(self, name: str) -> str | None:
        """Return the text of a file, None if it does not exist. Raises OSError, and ValueError if it is not text."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a segment; `offset` is the one in its name."""

    name: str
    offset: int
    kind: str


def open_log_dirs(paths: Sequence[Path]) -> list[LogDir]:
    """Return the log directories at these paths, each once.

    Raises:
        UsageError: a path is not a directory.
        RefusedError: one is not a log directory, or they belong to several brokers.
    """
    found: dict[Path, LogDir] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"--log-dir: {path} is not a directory", "give a directory of the broker's log.dirs")
        real = path.resolve()
        found.setdefault(real, _opened(real))
    dirs = list(found.values())
    for one in dirs[1:]:
        if (one.cluster_id, one.node_id) != (dirs[0].cluster_id, dirs[0].node_id):
            raise RefusedError(
                f"{dirs[0].path} and {one.path} belong to different brokers", "run the command once for each broker"
            )
    return dirs


def _opened(path: Path) -> LogDir:
    try:
        properties = parse_properties((path / _META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedError(
            f"{path} is not a log directory: it has no {_META}", "give the directories in log.dirs, not their parents"
        ) from None
    cluster_id = properties.get("cluster.id")
    node_id = properties.get("node.id") or properties.get("broker.id")
    if not cluster_id or not node_id:
        raise RefusedError(
            f"{path / _META} names no cluster and node", "only a formatted log directory can be truncated"
        )
    return LogDir(path, cluster_id, node_id)


@contextmanager
def locked(dirs: Sequence[LogDir]) -> Iterator[None]:
    """Hold the locks of log directories, so that no broker and no second command uses them.

    Raises RefusedError: another process holds one, or it cannot be opened.
    """
    with ExitStack() as stack:
        for one in dirs:
            stack.enter_context(_locked(one.path))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / _LOCK
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RefusedError(f"{path} cannot be opened: {error.strerror}", "run as the broker's user") from None
        try:
            _give_to_owner(descriptor, folder)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RefusedError(
                    f"{folder} is in use by a broker or another command",
                    "stop the broker and wait until its process has ended",
                ) from None
            if _is_same(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _give_to_owner(descriptor: int, folder: Path) -> None:
    """Give a lock file that we created as root to the broker's user, who must be able to open it."""
    owner, made = folder.stat(), os.fstat(descriptor)
    if os.geteuid() == 0 and made.st_uid != owner.st_uid and made.st_uid == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _is_same(descriptor: int, path: Path) -> bool:
    """Return whether the locked file is still the one at its path; a stopping broker may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Folders:
    """Partitions with a folder in a log directory: in use, or being moved between directories or deleted."""

    in_use: frozenset[TopicPartition]
    moving: frozenset[TopicPartition]


def folders_of(log_dir: LogDir) -> Folders:
    """Return the partitions that have a folder here. Raises OSError."""
    in_use: set[TopicPartition] = set()
    moving: set[TopicPartition] = set()
    with os.scandir(log_dir.path) as entries:
        for entry in entries:
            marked = _MOVING.fullmatch(entry.name)
            found = _FOLDER.fullmatch(marked["name"] if marked else entry.name)
            if found and entry.is_dir():
                partition = TopicPartition(found["topic"], int(found["partition"]))
                (moving if marked else in_use).add(partition)
    return Folders(frozenset(in_use), frozenset(moving))


def segment_files(folder: Path) -> list[SegmentFile]:
    """Return the files of a partition's segments, by offset.

    Raises:
        RefusedError: there is an unknown file.
        OSError: the folder cannot be read.
    """
    found: list[SegmentFile] = []
    for entry in sorted(os.listdir(folder)):
        if match := _SEGMENT_FILE.fullmatch(entry):
            found.append(SegmentFile(entry, int(match["offset"]), match["kind"]))
        elif entry not in {EPOCHS, METADATA} and not _LEFT_OVER.fullmatch(entry):
            raise RefusedError(
                f"{folder.name} holds {entry}, which is unknown",
                "if the broker left it, start and cleanly stop the broker; otherwise move it away",
            )
    return found


Stamp = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


def stamps_of(log_dir: LogDir) -> dict[str, Stamp]:
    """Return size and time of every file below a log directory except its lock and our files. Raises OSError."""
    found: dict[str, Stamp] = {}
    _stamp(log_dir.path, "", found)
    return found


def _stamp(folder: Path | str, prefix: str, found: dict[str, Stamp]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                _stamp(entry.path, f"{name}/", found)
            elif name != _LOCK and not name.startswith(OWN_PREFIX):
                status = entry.stat(follow_symlinks=False)
                found[name] = (status.st_size, status.st_mtime_ns)
