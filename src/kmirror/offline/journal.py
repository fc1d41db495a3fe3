"""The journal of a cut, written before the first file of a log directory is changed: the changes, and the state before.

A journal is the file `kmirror-cut-N.json` in the log directory, N counting up; its side files are next to it as
`kmirror-cut-N.*`. It also has size and time of every file below the log directory. They show reliably whether another
process was here since: a broker that starts reads every partition, and changes files at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kmirror.errors import RefusedError
from kmirror.offline import changes
from kmirror.offline.changes import Change, sync_folder, write_text
from kmirror.offline.log_dir import OWN_PREFIX, LogDir, Stamp, stamps_of
from kmirror.offline.survey import CutSummary

_VERSION = 1
_NAME = re.compile(re.escape(OWN_PREFIX) + r"(?P<run>[0-9]+)\.json")


class Phase(StrEnum):
    """The progress of a cut."""

    CUTTING = "CUTTING"
    CUT = "CUT"
    UNDOING = "UNDOING"
    #: All is as before; side files may still exist.
    UNDONE = "UNDONE"
    #: It was interrupted, and a broker ran before it was finished; its side files are kept.
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class Journal:
    """One cut of one log directory. `plan` is the digest of the plan; `stamps` are from before the first change."""

    run: int
    phase: Phase
    plan: str
    summaries: tuple[CutSummary, ...]
    changes: tuple[Change, ...]
    stamps: Mapping[str, Stamp]

    @property
    def name(self) -> str:
        """The journal's file name."""
        return f"{OWN_PREFIX}{self.run}.json"

    @property
    def saved_files(self) -> str:
        """The pattern of the names of its side files."""
        return f"{OWN_PREFIX}{self.run}.*"

    @property
    def is_unfinished(self) -> bool:
        """Whether it was interrupted half-way."""
        return self.phase in {Phase.CUTTING, Phase.UNDOING}

    def write(self, log_dir: LogDir, phase: Phase) -> Journal:
        """Write it to disk with this phase, and return it. Raises OSError."""
        journal = replace(self, phase=phase)
        document = {
            "version": _VERSION,
            "run": journal.run,
            "phase": phase.value,
            "plan": journal.plan,
            "partitions": [asdict(summary) for summary in journal.summaries],
            "changes": [changes.to_json(change) for change in journal.changes],
            "files": {path: list(stamp) for path, stamp in journal.stamps.items()},
        }
        write_text(log_dir.path / journal.name, json.dumps(document, indent=1) + "\n", log_dir.path)
        return journal

    def remove(self, log_dir: LogDir) -> None:
        """Remove the side files, and the journal last. Raises OSError."""
        journal = log_dir.path / self.name
        for path in log_dir.path.glob(self.saved_files):
            if path != journal:
                path.unlink()
        sync_folder(log_dir.path)
        journal.unlink(missing_ok=True)
        sync_folder(log_dir.path)

    def touched_since(self, log_dir: LogDir) -> str | None:
        """Return the first file that is neither as before nor as the cut makes it, None if there is none.

        Raises OSError.
        """
        now = stamps_of(log_dir)
        by_path = {change.path: change for change in self.changes}
        undoing = self.phase is Phase.UNDOING
        for path in sorted(self.stamps.keys() | now.keys()):
            was, found, change = self.stamps.get(path), now.get(path), by_path.get(path)
            if not (was == found if change is None else change.explains(log_dir.path, was, found, undoing=undoing)):
                return path
        return None


def journals_of(log_dir: LogDir) -> list[Journal]:
    """Return the journals of a log directory, oldest first. Raises RefusedError: one cannot be read."""
    runs = [(int(match["run"]), path) for path in log_dir.path.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [_read(path) for _, path in sorted(runs)]


def _read(path: Path) -> Journal:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored["version"] != _VERSION:
            raise ValueError(f"version {stored['version']}")
        return Journal(
            stored["run"],
            Phase(stored["phase"]),
            stored["plan"],
            tuple(CutSummary(**summary) for summary in stored["partitions"]),
            tuple(changes.from_json(change) for change in stored["changes"]),
            {name: (size, time) for name, (size, time) in stored["files"].items()},
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            f"{path} cannot be read: {error}", "use the version of kmirror that wrote it, or restore the file"
        ) from None
