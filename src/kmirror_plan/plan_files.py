"""The folder of a plan: its document, the page, the runbook, and a file with the topics of each wave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmirror.bounded_files import MOST_DOCUMENT_BYTES, expanded, read_file
from kmirror.commands import Arguments
from kmirror.errors import KmirrorError, UsageError
from kmirror.files import replace_file
from kmirror.words import json_text
from kmirror_plan.migration_plan import VERSION, MigrationPlan
from kmirror_plan.plan_page import plan_page
from kmirror_plan.runbook import runbook, wave_files

PLAN_FILE = "plan.json"
RUNBOOK_FILE = f"{Path('runbook').with_suffix('.md')}"


@dataclass(frozen=True, slots=True)
class PlanFolder:
    """A folder for one plan, which replaces an earlier one."""

    path: Path

    @classmethod
    def at(cls, path: str) -> PlanFolder:
        """Return the folder at that path, and create it.

        Raises:
            UsageError: it cannot be written, or has other files than an earlier plan's.
        """
        folder = expanded(path, "--out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = {file.name for file in folder.iterdir()}
        except OSError as error:
            raise UsageError(f"--out: cannot use {folder}: {error.strerror}", "name another directory") from None
        if names and PLAN_FILE not in names:
            raise UsageError(f"--out: {folder} has files that are not of a plan", "name another directory")
        return cls(folder)

    def write(self, plan: MigrationPlan, mirror: str, source: Arguments, destination: Arguments) -> list[str]:
        """Write the files; return their names. Raises KmirrorError."""
        content = wave_files(plan)
        content[RUNBOOK_FILE] = runbook(plan, mirror, source, destination)
        content["plan.html"] = plan_page(plan)
        content[PLAN_FILE] = json_text(plan.to_json(), indent=1) + "\n"
        try:
            for old in self.path.glob("wave-*.topics"):
                if old.name not in content:
                    old.unlink()
            for name, text in content.items():
                replace_file(self.path / name, text)
        except OSError as error:
            raise KmirrorError(f"the plan cannot be written to {self.path}: {error.strerror}") from error
        return sorted(content)


def read_plan(path: str, flag: str = "--against") -> dict[str, Any]:
    """Return the document of the plan in a folder that was given with `flag`.

    Raises:
        UsageError: there is none, or another version wrote it.
    """
    file = expanded(path, flag) / PLAN_FILE
    try:
        found = json.loads(read_file(file, MOST_DOCUMENT_BYTES))
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {file}: {error.strerror}", "name the folder of a plan") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise UsageError(f"{flag}: {file} is not a plan of this version", "make it again with `kmirror plan --out`")
    if not isinstance(found.get("mirrorConfig"), dict) or not isinstance(found.get("options"), dict):
        raise UsageError(f"{flag}: {file} is damaged", "make it again with `kmirror plan --out`")
    return found
