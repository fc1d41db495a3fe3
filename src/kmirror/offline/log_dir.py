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
from kmirror.offline.folder import Folder, refused, without_groups

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
    """An open log directory, and the broker in its `meta.properties`."""

    folder: Folder
    cluster_id: str
    node_id: str

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        return self.folder.path

    def text(self, name: str) -> str | None:
        """Return the text of a file, None if it does not exist. Raises OSError, and ValueError if it is not text."""
        return self.folder.text(name)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a segment; `offset` is the one in its name."""

    name: str
    offset: int
    kind: str


@contextmanager
def open_log_dirs(paths: Sequence[Path]) -> Iterator[list[LogDir]]:
    """Open the log directories at these paths, each once; as root, files in them are used as their owner.

    Raises:
        UsageError: a path is not a directory.
        RefusedError: one is not a log directory, or they belong to several brokers.
    """
    with ExitStack() as stack:
        found: dict[tuple[int, int], Folder] = {}
        for path in paths:
            try:
                folder = Folder(path.resolve())
            except OSError as error:
                raise UsageError(
                    f"--log-dir: {path} is not a directory that can be read: {error.strerror}",
                    "give a directory of the broker's log.dirs",
                ) from None
            stack.callback(folder.close)
            found.setdefault(folder.identity, folder)
        if any(folder.is_anothers for folder in found.values()):
            stack.enter_context(without_groups())
        dirs = [_opened(folder) for folder in found.values()]
        for one in dirs[1:]:
            if (one.cluster_id, one.node_id) != (dirs[0].cluster_id, dirs[0].node_id):
                raise RefusedError(
                    f"{dirs[0].path} and {one.path} belong to different brokers", "run the command once for each broker"
                )
        yield dirs


def _opened(folder: Folder) -> LogDir:
    try:
        text = folder.text(_META)
    except OSError as error:
        raise refused(error) from None
    if text is None:
        raise RefusedError(
            f"{folder.path} is not a log directory: it has no {_META}",
            "give the directories in log.dirs, not their parents",
        )
    properties = parse_properties(text)
    cluster_id = properties.get("cluster.id")
    node_id = properties.get("node.id") or properties.get("broker.id")
    if not cluster_id or not node_id:
        raise RefusedError(
            f"{folder.path / _META} names no cluster and node", "only a formatted log directory can be truncated"
        )
    return LogDir(folder, cluster_id, node_id)


@contextmanager
def locked(dirs: Sequence[LogDir]) -> Iterator[None]:
    """Hold the locks of log directories, so that no broker and no second command uses them.

    Raises RefusedError: another process holds one, or it cannot be opened.
    """
    with ExitStack() as stack:
        for one in dirs:
            stack.enter_context(_locked(one.folder))
        yield


@contextmanager
def _locked(folder: Folder) -> Iterator[None]:
    while True:
        try:
            descriptor = folder.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise refused(error) from None
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RefusedError(
                    f"{folder.path} is in use by a broker or another command",
                    "stop the broker and wait until its process has ended",
                ) from None
            # a stopping broker may have removed the file that we locked
            status = folder.status(_LOCK)
            if status is not None and os.path.samestat(os.fstat(descriptor), status):
                yield
                return
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Folders:
    """Partitions with a folder in a log directory: in use, or being moved between directories or deleted."""

    in_use: frozenset[TopicPartition]
    moving: frozenset[TopicPartition]


def folders_of(log_dir: LogDir) -> Folders:
    """Return the partitions that have a folder here. Raises OSError."""
    in_use: set[TopicPartition] = set()
    moving: set[TopicPartition] = set()
    for name in log_dir.folder.names():
        marked = _MOVING.fullmatch(name)
        found = _FOLDER.fullmatch(marked["name"] if marked else name)
        if found:
            partition = TopicPartition(found["topic"], int(found["partition"]))
            (moving if marked else in_use).add(partition)
    return Folders(frozenset(in_use), frozenset(moving))


def segment_files(log_dir: LogDir, folder: str) -> list[SegmentFile]:
    """Return the files of a partition's segments, by offset.

    Raises:
        RefusedError: there is an unknown file.
        OSError: the folder cannot be read.
    """
    found: list[SegmentFile] = []
    for entry in log_dir.folder.names(folder):
        if match := _SEGMENT_FILE.fullmatch(entry):
            found.append(SegmentFile(entry, int(match["offset"]), match["kind"]))
        elif entry not in {EPOCHS, METADATA} and not _LEFT_OVER.fullmatch(entry):
            raise RefusedError(
                f"{folder} holds {entry}, which is unknown",
                "if the broker left it, start and cleanly stop the broker; otherwise move it away",
            )
    return found


Stamp = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


def stamps_of(log_dir: LogDir) -> dict[str, Stamp]:
    """Return size and time of every file below a log directory except its lock and our files. Raises OSError."""
    return {
        name: (status.st_size, status.st_mtime_ns)
        for name, status in log_dir.folder.statuses().items()
        if name != _LOCK and not name.startswith(OWN_PREFIX)
    }
