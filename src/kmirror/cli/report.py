"""The file of `--report`: evidence of what a verb did, as one JSON document."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmirror.errors import KmirrorError, UsageError


@dataclass(frozen=True, slots=True)
class Report:
    """Write a report; what stood in the file before is there until the new one is whole."""

    path: Path

    @classmethod
    def at(cls, path: str) -> Report:
        """Return the report of that path.

        Raises:
            UsageError: it cannot be written; said before the work it is about.
        """
        report = cls(Path(path).expanduser())
        try:
            report._unfinished.touch()
            report._unfinished.unlink()
        except OSError as error:
            raise UsageError(
                f"--report: cannot write {report.path}: {error.strerror}", "name a file in a folder that can be written"
            ) from None
        if report.path.is_dir():
            raise UsageError(f"--report: {report.path} is a folder", "name a file in it")
        return report

    def write(self, document: Mapping[str, Any]) -> None:
        """Write the document.

        Raises:
            KmirrorError: the file cannot be written any more.
        """
        try:
            self._unfinished.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(self._unfinished, self.path)
        except OSError as error:
            raise KmirrorError(f"the report {self.path} cannot be written: {error.strerror}") from error

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
