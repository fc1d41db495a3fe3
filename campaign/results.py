"""The results of campaigns, accumulated in docs/results/campaign.json, and the tables made from them.

`python -m campaign.results` writes the tables into docs/campaign.md; a test compares them.
"""

from __future__ import annotations

import json
import re
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
#: How many characters of an error, and how many rows of `describe`, are stored of a violation.
_MOST_TOLD, _MOST_ROWS = 600, 3
_ROW = ("topic", "partition", "state", "reason", "errorMessage", "sourceOffset", "destinationOffset", "lag", "asOf")


class Results:
    """A results file, rewritten after each result; without a file nothing is stored."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: dict[str, list[dict[str, Any]]] = {"worlds": [], "logs": []}
        if file is not None and file.exists():
            self._found |= json.loads(file.read_text(encoding="utf-8"))
        self._run = {"commit": _commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d")}

    @property
    def known_logs(self) -> set[str]:
        """The seeds of the batches of logs that have been judged."""
        return {one["seed"] for one in self._found["logs"]}

    def add_logs(self, result: Mapping[str, Any]) -> None:
        """Add the result of a batch of logs."""
        self._add("logs", result)

    def add_world(self, result: Mapping[str, Any]) -> None:
        """Add the result of a world, with how often each fault was really injected."""
        acts = Counter(str(fault["act"]) for fault in result["faults"] if was_done(fault))
        self._add("worlds", {**result, "faults": dict(sorted(acts.items()))})

    def _add(self, part: str, result: Mapping[str, Any]) -> None:
        violations = [_short(one) for one in result["violations"]]
        self._found[part].append({**self._run, **result, "violations": violations})
        if self._file is not None:
            self._file.write_text(as_text(self._found), encoding="utf-8")


def _short(violation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may explain a violation that never comes back, without a machine's paths."""
    short = {key: violation[key] for key in ("what", "count", "offsets", "partitions lacking") if key in violation}
    if "error" in violation:
        short["error"] = re.sub(r"/\S+/", "…/", violation["error"])[:_MOST_TOLD]
    if rows := violation.get("rows"):
        short["rows"] = [{key: row[key] for key in _ROW if row.get(key) is not None} for row in rows[:_MOST_ROWS]]
    return short


def was_done(fault: Mapping[str, Any]) -> bool:
    """Return False if a fault had no effect: its victim was gone, or it had nothing to act on."""
    return not fault.keys() & {"error", "nothing"}


def as_text(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return results as stored: one per line."""
    parts = []
    for part, some in found.items():
        lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in some)
        parts.append(f' "{part}": [\n{lines}\n ]' if some else f' "{part}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _commit() -> str:
    command = ["git", "-C", str(_REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def tables(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the tables of what was run and found."""
    return "".join(line + "\n" for line in _lines(found))


def _lines(found: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    worlds, logs = found["worlds"], found["logs"]
    faults = sum((Counter(one["faults"]) for one in worlds), Counter[str]())
    yield "| | worlds | generated logs |"
    yield "|---|---|---|"
    yield f"| runs | {len(worlds):,} | {sum(one['logs'] for one in logs):,} |"
    yield f"| faults | {faults.total():,} | {sum(sum(one['faults'].values()) for one in logs):,} |"
    yield f"| hours | {_hours(worlds)} | {_hours(logs)} |"
    yield f"| runs with a violation | {_violated(worlds)} | {_violated(logs)} |"
    yield ""
    if worlds:
        yield f"Faults in worlds: {_counted(faults)}.\n"
        endings = Counter(str(one["ending"]) for one in worlds)
        yield f"Endings of worlds: {_counted(endings)}.\n"
    if logs:
        features = sum((Counter(one["features"]) for one in logs), Counter[str]())
        done = sum((Counter(one["faults"]) for one in logs), Counter[str]())
        records, hidden, cleaned = (
            sum(one[key] for one in logs) for key in ("records", "hiddenOffsets", "cleanedOffsets")
        )
        yield f"The generated logs held {records:,} records and {hidden:,} offsets without a visible record"
        yield f"({cleaned:,} of them in compacted topics). Features of logs: {_counted(features)}.\n"
        yield f"Faults while they were copied: {_counted(done)}.\n"
    some = worlds + logs
    if some:
        versions = sorted({" to ".join(one.get("versions") or one["ground"]["versions"]) for one in some})
        commits = sorted({one["commit"] for one in some})
        yield f"Kafka {', '.join(versions)}; kmirror at {', '.join(commits)}; {min(one['date'] for one in some)} to"
        yield f"{max(one['date'] for one in some)}. The seeds are in [campaign.json](results/campaign.json)."


def _hours(some: list[dict[str, Any]]) -> str:
    return f"{sum(one['seconds'] for one in some) / 3600:.1f}"


def _violated(some: list[dict[str, Any]]) -> int:
    return sum(1 for one in some if one["violations"])


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what} ({count:,})" for what, count in sorted(counts.items()))


def write_page() -> None:
    """Replace the page's tables by those of the stored results."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, rest = after.partition(END)
    PAGE.write_text(before + BEGIN + stored_tables() + END + rest, encoding="utf-8")


def stored_tables() -> str:
    """Return the tables of the stored results."""
    return tables(json.loads(STORED.read_text(encoding="utf-8")))


if __name__ == "__main__":
    write_page()
