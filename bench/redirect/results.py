"""The stored results of the moves, and the tables of them for the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.processes import REPOSITORY
from bench.redirect.clients import KINDS
from bench.redirect.outcome import Outcome

RESULTS = REPOSITORY / "docs" / "results" / "redirect.json"
PAGE = REPOSITORY / "docs/apps/evicting-clients.md"
BEGIN = "<!-- {}: written by: python -m bench.redirect -->\n"
END = "<!-- end -->\n"
TITLES = {
    "planned": "planned move",
    "back": "move back",
    "killed": "old cluster killed",
    "frozen": "old cluster frozen",
    "impatient": "old cluster frozen, impatient clients",
    "split": "planned move, every other client at a door that lags 30 s behind",
}


def stored() -> dict[str, Any]:
    """Return the stored results, by scenario."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def store(scenario: str, machine: Mapping[str, Any], left_out: Mapping[str, str], rows: Sequence[Outcome]) -> None:
    """Replace the results of a scenario; `left_out` has the causes by client."""
    found = {**stored(), scenario: {"machine": machine, "leftOut": left_out, "clients": [asdict(row) for row in rows]}}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table(results: Mapping[str, Any], scenario: str) -> str:
    """Return the table of a scenario in Markdown, with a line about the machine."""
    if scenario not in results:
        return "Not measured yet.\n"
    return "".join(f"{line}\n" for line in _lines(results[scenario]))


def write_page() -> None:
    """Replace the tables of docs/apps/evicting-clients.md."""
    text = PAGE.read_text(encoding="utf-8")
    for scenario in TITLES:
        before, _, after = text.partition(BEGIN.format(scenario))
        text = before + BEGIN.format(scenario) + table(stored(), scenario) + END + after.partition(END)[2]
    PAGE.write_text(text, encoding="utf-8")


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    titles = {kind.key: kind.title for kind in KINDS}
    yield "| client | no writes | no reads | lost | doubled | read again | refused | restarted |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in found["clients"]:
        yield (
            f"| {titles[row['client']]} | {_seconds(row['seconds_without_write'])}"
            f" | {_seconds(row['seconds_without_read'])} | {row['lost']} of {row['acknowledged']:,} | {row['doubled']}"
            f" | {row['read_again']} | {row['refused']} | {row['restarts']} |"
        )
    for key, why in found["leftOut"].items():
        yield f"| {titles[key]} | left out: {why} | | | | | | |"
    machine = found["machine"]
    yield ""
    yield (
        f"{machine['measured_at'][:10]}, {machine['cores']} cores of {machine['cpu']} for both clusters, the engine and"
        f" the clients, {machine['memory_gigabytes']} GB; Kafka {machine['kafka']}; load average before:"
        f" {machine['load_average']}"
    )


def _seconds(value: float | None) -> str:
    return "did not come back" if value is None else f"{value:g} s"
