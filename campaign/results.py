"""What campaigns did and found, added up over sessions in docs/results/campaign.json, and the tables made of it.

`python -m campaign.results` writes the tables into docs/campaign.md; a test compares.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parent.parent
STORED = _REPOSITORY / "docs" / "results" / "campaign.json"
PAGE = _REPOSITORY / "docs" / "campaign.md"
BEGIN = "<!-- written by: python -m campaign.results -->\n"
END = "<!-- end -->\n"


class Results:
    """A file of results, written anew with each; without a file nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: dict[str, list[dict[str, Any]]] = {"worlds": [], "logs": []}
        if file is not None and file.exists():
            self._found |= json.loads(file.read_text(encoding="utf-8"))
        self._run = {"commit": _commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d")}

    @property
    def known_logs(self) -> set[str]:
        """Return the seeds of logs that were judged."""
        return {one["seed"] for one in self._found["logs"]}

    def add_logs(self, result: Mapping[str, Any]) -> None:
        """Add a batch of logs."""
        self._add("logs", result)

    def add_world(self, result: Mapping[str, Any]) -> None:
        """Add a world; of its faults how often each act was really done."""
        acts = Counter(str(fault["act"]) for fault in result["faults"] if was_done(fault))
        self._add("worlds", {**result, "faults": dict(sorted(acts.items()))})

    def _add(self, part: str, result: Mapping[str, Any]) -> None:
        told = [{key: one[key] for key in ("what", "count") if key in one} for one in result["violations"]]
        self._found[part].append({**self._run, **result, "violations": told})
        if self._file is not None:
            self._file.write_text(as_text(self._found), encoding="utf-8")


def was_done(fault: Mapping[str, Any]) -> bool:
    """Tell whether a fault was done: its victim may be gone, or there is nothing that it could do."""
    return not fault.keys() & {"error", "nothing"}


def as_text(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return results as they are stored: a line each."""
    parts = []
    for part, some in found.items():
        lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in some)
        parts.append(f' "{part}": [\n{lines}\n ]' if some else f' "{part}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _commit() -> str:
    command = ["git", "-C", str(_REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


# -- the page ----------------------------------------------------------------------------------------------------------


def tables(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the tables of what was done and found."""
    return "".join(line + "\n" for line in _lines(found))


def _lines(found: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    worlds, logs = found["worlds"], found["logs"]
    faults = sum((Counter(one["faults"]) for one in worlds), Counter[str]())
    yield "| | worlds | generated logs |"
    yield "|---|---|---|"
    yield f"| how many | {len(worlds):,} | {sum(one['logs'] for one in logs):,} |"
    yield f"| faults | {faults.total():,} | {sum(sum(one['faults'].values()) for one in logs):,} |"
    yield f"| hours | {_hours(worlds)} | {_hours(logs)} |"
    yield f"| runs with a violation | {_violated(worlds)} | {_violated(logs)} |"
    yield ""
    if worlds:
        yield f"Faults in worlds: {_counted(faults)}."
        endings = Counter(str(one["ending"]) for one in worlds)
        yield f"Worlds ended by {_counted(endings)}."
    if logs:
        features = sum((Counter(one["features"]) for one in logs), Counter[str]())
        done = sum((Counter(one["faults"]) for one in logs), Counter[str]())
        records, hidden, cleaned = (
            sum(one[key] for one in logs) for key in ("records", "hiddenOffsets", "cleanedOffsets")
        )
        yield f"{records:,} records were judged in generated logs, between {hidden:,} offsets that show none"
        yield f"({cleaned:,} of them in compacted topics). Logs with: {_counted(features)}."
        yield f"Done under their copies: {_counted(done)}."
    some = worlds + logs
    if some:
        versions = sorted({" to ".join(one.get("versions") or one["ground"]["versions"]) for one in some})
        commits = sorted({one["commit"] for one in some})
        yield f"Kafka {', '.join(versions)}; kmirror at {', '.join(commits)}; {min(one['date'] for one in some)} to"
        yield f"{max(one['date'] for one in some)}. Seeds are in [campaign.json](results/campaign.json)."


def _hours(some: list[dict[str, Any]]) -> str:
    return f"{sum(one['seconds'] for one in some) / 3600:.1f}"


def _violated(some: list[dict[str, Any]]) -> int:
    return sum(1 for one in some if one["violations"])


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what} ({count:,})" for what, count in sorted(counts.items()))


def write_page() -> None:
    """Replace the page's tables by those that the stored results make."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, rest = after.partition(END)
    PAGE.write_text(before + BEGIN + stored_tables() + END + rest, encoding="utf-8")


def stored_tables() -> str:
    """Return the tables of the stored results."""
    return tables(json.loads(STORED.read_text(encoding="utf-8")))


if __name__ == "__main__":
    write_page()
