"""The journal of a cut, written before the first file of a log directory is changed: the changes, and the state before.

A journal is the file `kmirror-cut-N.json` in the log directory, N counting up; its side files are next to it as
`kmirror-cut-N.*`. It also has size and time of every file below the log directory. They show reliably whether another
process was here since: a broker that starts reads every partition, and changes files at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from kmirror.errors import RefusedError
from kmirror.offline import folder_changes as changes
from kmirror.offline.folder import is_path_inside, refused
from kmirror.offline.folder_changes import UNFINISHED, Change, Rewrite
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
        log_dir.folder.write_text(journal.name, json.dumps(document, indent=1) + "\n", UNFINISHED)
        return journal

    def remove(self, log_dir: LogDir) -> None:
        """Remove the side files, and the journal last. Raises OSError."""
        folder = log_dir.folder
        for name in folder.names():
            if name.startswith(f"{OWN_PREFIX}{self.run}.") and name != self.name:
                folder.remove(name)
        folder.sync(self.name)
        folder.remove(self.name)
        folder.sync(self.name)

    def touched_since(self, log_dir: LogDir) -> str | None:
        """Return the first file that is neither as before nor as the cut makes it, None if there is none.

        Raises OSError.
        """
        now = stamps_of(log_dir)
        by_path = {change.path: change for change in self.changes}
        undoing = self.phase is Phase.UNDOING
        for path in sorted(self.stamps.keys() | now.keys()):
            was, found, change = self.stamps.get(path), now.get(path), by_path.get(path)
            if not (was == found if change is None else change.explains(log_dir.folder, was, found, undoing=undoing)):
                return path
        return None


def journals_of(log_dir: LogDir) -> list[Journal]:
    """Return the journals of a log directory, oldest first. Raises RefusedError: one cannot be read."""
    try:
        runs = [(int(match["run"]), name) for name in log_dir.folder.names() if (match := _NAME.fullmatch(name))]
    except OSError as error:
        raise refused(error) from None
    return [_read(log_dir, name, run) for run, name in sorted(runs)]


def _read(log_dir: LogDir, name: str, run: int) -> Journal:
    try:
        journal = _parsed(json.loads(log_dir.text(name) or ""))
        if journal.run != run:
            raise ValueError(f"it says that it is {journal.name}")
        return journal
    except OSError as error:
        raise refused(error) from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RefusedError(
            f"{log_dir.path / name} cannot be read: {error}",
            "use the version of kmirror that wrote it, or restore the file",
        ) from None


def _parsed(stored: dict[str, Any]) -> Journal:
    """Return the journal in a document. Raises ValueError, TypeError or KeyError: it is not one that we write."""
    if stored["version"] != _VERSION:
        raise ValueError(f"version {stored['version']}")
    journal = Journal(
        stored["run"],
        Phase(stored["phase"]),
        stored["plan"],
        tuple(CutSummary(**summary) for summary in stored["partitions"]),
        tuple(changes.from_json(change) for change in stored["changes"]),
        {name: (size, time) for name, (size, time) in stored["files"].items()},
    )
    saved = f"{OWN_PREFIX}{journal.run}."
    for change in journal.changes:
        if not is_path_inside(change.path) or change.path.startswith(OWN_PREFIX) or change.path not in journal.stamps:
            raise ValueError(f"{change.path!r} is not the path of one of the broker's files")
        if not isinstance(change, Rewrite) and not (change.saved.startswith(saved) and is_path_inside(change.saved)):
            raise ValueError(f"{change.saved!r} is not the name of a saved file")
    numbers = [value for stamp in journal.stamps.values() for value in stamp]
    for one in (*journal.summaries, *journal.changes):
        for field in fields(one):
            value = getattr(one, field.name)
            if type(value) is not (int if field.type == "int" else str):
                raise ValueError(f"{field.name} is {value!r}")
            numbers += [value] if isinstance(value, int) else []
    if not all(type(number) is int and number >= 0 for number in (journal.run, *numbers)):
        raise ValueError("it holds something else where a number belongs")
    return journal
