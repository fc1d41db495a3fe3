"""The three kinds of change made to files. Each can be repeated and undone.

A crash leaves a change not begun, half done or done; doing it again finishes it, and undoing it again reverts it fully.
What must be on disk before the next change is synced at once; moved file names by the caller. Paths are relative
to the log directory, `saved` is the name of our side file in it. `progress` is called with the number of bytes copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kmirror.errors import KmirrorError
from kmirror.offline.folder import Folder
from kmirror.offline.log_dir import OWN_PREFIX, Stamp
from kmirror.work import Add

_PIECE = 1 << 20
UNFINISHED = f"{OWN_PREFIX}unfinished"


@dataclass(frozen=True, slots=True)
class Move:
    """Move a file away as a whole."""

    path: str
    saved: str

    def do(self, root: Folder, progress: Add) -> None:
        """Move the file to its side file. Raises OSError."""
        _rename(root, self.path, self.saved)

    def undo(self, root: Folder, before: Stamp, progress: Add) -> None:
        """Move it back. Raises OSError."""
        _rename(root, self.saved, self.path)

    def explains(self, root: Folder, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file is as before, or moved away."""
        return now is None or now == before


@dataclass(frozen=True, slots=True)
class Shorten:
    """Cut off the end of a file; the side file keeps it."""

    path: str
    saved: str
    kept_bytes: int
    size_in_bytes: int

    def do(self, root: Folder, progress: Add) -> None:
        """Save the end and cut it off. Raises OSError."""
        if root.size(self.path) == self.kept_bytes and self._is_saved(root):
            return
        if not self._is_saved(root):
            self._save(root, progress)
        with root.changer(self.path) as file:
            file.truncate(self.kept_bytes)
            os.fsync(file.fileno())

    def undo(self, root: Folder, before: Stamp, progress: Add) -> None:
        """Append the end again. Raises OSError."""
        if (root.size(self.path) or 0) < self.size_in_bytes or self._is_saved(root):
            with root.reader(self.saved) as source, root.changer(self.path) as target:
                target.seek(self.kept_bytes)
                while piece := source.read(_PIECE):
                    target.write(piece)
                    progress(len(piece))
                target.truncate(self.size_in_bytes)
                target.flush()
                os.fsync(target.fileno())
        root.set_time(self.path, before[1])

    def explains(self, root: Folder, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file is as before or cut, or while undoing has a size in between."""
        if undoing:
            return now is not None and self.kept_bytes <= now[0] <= self.size_in_bytes
        return now is not None and (now == before or now[0] == self.kept_bytes)

    def _is_saved(self, root: Folder) -> bool:
        return root.size(self.saved) == self.size_in_bytes - self.kept_bytes

    def _save(self, root: Folder, progress: Add) -> None:
        with root.reader(self.path) as source, root.creator(UNFINISHED) as target:
            source.seek(self.kept_bytes)
            while piece := source.read(_PIECE):
                target.write(piece)
                progress(len(piece))
            target.flush()
            os.fsync(target.fileno())
        root.replace(UNFINISHED, self.saved)
        root.sync(self.saved)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replace the content of a small text file."""

    path: str
    before: str
    after: str

    def do(self, root: Folder, progress: Add) -> None:
        """Write the new content. Raises OSError."""
        if root.text(self.path) != self.after:
            root.write_text(self.path, self.after, UNFINISHED)

    def undo(self, root: Folder, before: Stamp, progress: Add) -> None:
        """Write the old content. Raises OSError."""
        if root.text(self.path) != self.before:
            root.write_text(self.path, self.before, UNFINISHED)
        root.set_time(self.path, before[1])

    def explains(self, root: Folder, before: Stamp | None, now: Stamp | None, *, undoing: bool) -> bool:
        """Return whether the file has one of the two contents."""
        return now is not None and root.text(self.path) in {self.before, self.after}


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


def _rename(root: Folder, path: str, target: str) -> None:
    if root.exists(path):
        if root.exists(target):
            raise KmirrorError(
                f"{root.path / path} and {root.path / target} both exist",
                "check which is the right one; nothing was lost",
            )
        root.replace(path, target)
    elif not root.exists(target):
        raise KmirrorError(
            f"{root.path / path} and {root.path / target} are both missing", "restore it from another replica"
        )
