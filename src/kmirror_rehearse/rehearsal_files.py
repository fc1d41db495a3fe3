"""The folder of `--out`: each rehearsal as a JSON document and a page, which also shows the earlier ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kmirror.bounded_files import MOST_DOCUMENT_BYTES, expanded, read_file
from kmirror.errors import KmirrorError, UsageError
from kmirror.files import replace_file
from kmirror.words import json_text
from kmirror_rehearse.rehearsal_evidence import VERSION, Rehearsal
from kmirror_rehearse.rehearsal_page import rehearsal_page

_PREFIX = "rehearsal-"


@dataclass(frozen=True, slots=True)
class RehearsalFolder:
    """A folder of rehearsals."""

    path: Path

    @classmethod
    def at(cls, path: str) -> RehearsalFolder:
        """Return the folder at that path, and create it. Raises UsageError: it cannot be written."""
        folder = expanded(path, "--out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (probe := folder / f".{_PREFIX}probe").touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(f"--out: cannot write to {folder}: {error.strerror}", "name another directory") from None
        return cls(folder)

    def earlier(self) -> list[dict[str, Any]]:
        """Return the documents of earlier rehearsals, oldest first; what is none of this version is left out."""
        found = []
        for file in sorted(self.path.glob(f"{_PREFIX}*.json")):
            try:
                document = json.loads(read_file(file, MOST_DOCUMENT_BYTES))
            except (OSError, ValueError):
                continue
            if isinstance(document, dict) and document.get("version") == VERSION and document.get("verb") == "rehearse":
                found.append(document)
        return sorted(found, key=lambda one: int(one["beganMs"]))

    def write(self, done: Rehearsal) -> Path:
        """Write the document and the page; return the page's path. Raises KmirrorError."""
        name = f"{_PREFIX}{datetime.fromtimestamp(done.began_ms / 1000, UTC):%Y-%m-%dT%H-%M-%SZ}"
        page = self.path / f"{name}.html"
        try:
            replace_file(page, rehearsal_page(done, self.earlier()))
            replace_file(self.path / f"{name}.json", json_text(done.to_json(), indent=1) + "\n")
        except OSError as error:
            raise KmirrorError(f"the evidence cannot be written to {self.path}: {error.strerror}") from error
        return page
