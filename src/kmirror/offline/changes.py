"""The three kinds of change made to files. Each can be repeated and undone.

A crash leaves a change not begun, half done or done; doing it again finishes it, and undoing it again reverts it fully.
What must be on disk before the next change is synced at once; moved file names with `sync_folder`. Paths are relative
to the log directory, `saved` is the name of our side file in it. `progress` is called with the number of bytes copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kmirror.errors import KmirrorError
from kmirror.offline.log_dir import OWN_PREFIX, Stamp
from kmirror.work import Add

_PIECE = 1 << 20
_UNFINISHED = f"{OWN_PREFIX}unfinished"


@dataclass(frozen=True, slots=True)
class Move:
    """Move a file away as a whole."""

    path: str
    saved: str

    def do(self, root: Path, progress: Add) -> None:
        """Move the file to its side file. Raises OSError."""
        _rename(root / self.path, root / self.saved)

    def undo(self, root: Path, before: Stamp, progress: Add) -> None:
        """Move it back. Raises OSError."""
        _rename(root / self.saved, root / self.path)

    def explains(self, root: Path, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file is as before, or moved away."""
        return now is None or now == before


@dataclass(frozen=True, slots=True)
class Shorten:
    """Cut off the end of a file; the side file keeps it."""

    path: str
    saved: str
    kept_bytes: int
    size_in_bytes: int

    def do(self, root: Path, progress: Add) -> None:
        """Save the end and cut it off. Raises OSError."""
        path, saved = root / self.path, root / self.saved
        if path.stat().st_size == self.kept_bytes and self._is_saved(saved):
            return
        if not self._is_saved(saved):
            self._save(path, saved, progress)
        with path.open("r+b") as file:
            file.truncate(self.kept_bytes)
            os.fsync(file.fileno())

    def undo(self, root: Path, before: Stamp, progress: Add) -> None:
        """Append the end again. Raises OSError."""
        path, saved = root / self.path, root / self.saved
        if path.stat().st_size < self.size_in_bytes or self._is_saved(saved):
            with saved.open("rb") as source, path.open("r+b") as target:
                target.seek(self.kept_bytes)
                while piece := source.read(_PIECE):
                    target.write(piece)
                    progress(len(piece))
                target.truncate(self.size_in_bytes)
                target.flush()
                os.fsync(target.fileno())
        os.utime(path, ns=(before[1], before[1]))

    def explains(self, root: Path, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file is as before or cut, or while undoing has a size in between."""
        if undoing:
            return now is not None and self.kept_bytes <= now[0] <= self.size_in_bytes
        return now is not None and (now == before or now[0] == self.kept_bytes)

    def _is_saved(self, saved: Path) -> bool:
        return saved.exists() and saved.stat().st_size == self.size_in_bytes - self.kept_bytes

    def _save(self, path: Path, saved: Path, progress: Add) -> None:
        unfinished = saved.with_name(_UNFINISHED)
        with path.open("rb") as source, unfinished.open("wb") as target:
            source.seek(self.kept_bytes)
            while piece := source.read(_PIECE):
                target.write(piece)
                progress(len(piece))
            target.flush()
            os.fsync(target.fileno())
        os.replace(unfinished, saved)
        sync_folder(saved.parent)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replace the content of a small text file."""

    path: str
    before: str
    after: str

    def do(self, root: Path, progress: Add) -> None:
        """Write the new content. Raises OSError."""
        if (root / self.path).read_text(encoding="utf-8") != self.after:
            write_text(root / self.path, self.after, root)

    def undo(self, root: Path, before: Stamp, progress: Add) -> None:
        """Write the old content. Raises OSError."""
        if (root / self.path).read_text(encoding="utf-8") != self.before:
            write_text(root / self.path, self.before, root)
        os.utime(root / self.path, ns=(before[1], before[1]))

    def explains(self, root: Path, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file has one of the two contents."""
        return now is not None and (root / self.path).read_text(encoding="utf-8") in {self.before, self.after}


Change = Move | Shorten | Rewrite
_KINDS: Mapping[str, type[Change]] = {"move": Move, "shorten": Shorten, "rewrite": Rewrite}


def to_json(change: Change) -> dict[str, Any]:
    """Return a change as stored in the journal."""
    kind = next(name for name, one in _KINDS.items() if one is type(change))
    return {"kind": kind, **asdict(change)}


def from_json(stored: Mapping[str, Any]) -> Change:
    """Return a change stored in the journal. Raises KeyError or TypeError if it is not one."""
    fields = dict(stored)
    return _KINDS[fields.pop("kind")](**fields)


def write_text(path: Path, text: str, root: Path) -> None:
    """Replace a file's content atomically and durably, or create the file; owner and mode stay. Raises OSError."""
    unfinished = root / _UNFINISHED
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if path.exists():
            status = path.stat()
            os.fchmod(file.fileno(), status.st_mode & 0o7777)
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(path: Path, target: Path) -> None:
    if path.exists():
        if target.exists():
            raise KmirrorError(f"{path} and {target} both exist", "check which is the right one; nothing was lost")
        os.rename(path, target)
    elif not target.exists():
        raise KmirrorError(f"{path} and {target} are both missing", "restore it from another replica")
