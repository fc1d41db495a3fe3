"""README's table of how fast a copy is, generated from the results, never by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from bench.data import DATA_SETS
from bench.processes import REPOSITORY

RESULTS = REPOSITORY / "docs" / "results" / "bench.json"
README = REPOSITORY / "README.md"
BEGIN = "<!-- written by: python -m bench --readme -->\n"
END = "<!-- end -->\n"


def write_table() -> None:
    """Replace README's table by the one that the stored results make."""
    before, _, after = README.read_text(encoding="utf-8").partition(BEGIN)
    _, _, rest = after.partition(END)
    README.write_text(before + BEGIN + stored_table() + END + rest, encoding="utf-8")


def stored_table() -> str:
    """Return the table of what was measured last."""
    return "".join(line + "\n" for line in _lines(json.loads(RESULTS.read_text(encoding="utf-8"))))


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| batches | kmirror | MirrorMaker 2, tuned | the destination alone, from memory |"
    yield "|---|---|---|---|"
    for data_set in DATA_SETS.values():
        ours, theirs, ceiling = (
            [copy for copy in results["copies"] if (copy["data_set"], copy["contender"]) == (data_set.key, contender)]
            for contender in ("kmirror", "mirrormaker", "ceiling")
        )
        if ours and theirs and ceiling:
            cells = (data_set.title, *(f"{_rate(one)}, {_cpu(one)}" for one in (ours, theirs)), _rate(ceiling))
            yield f"| {' | '.join(cells)} |"
    for latency in results["latencies"]:
        if latency["contender"] == "kmirror":
            added = latency["added_ms"]
            yield ""
            yield (
                f"At 200 records a second a record is readable {added['p50']:.0f} ms later than at the source"
                f" (median; 99 %: {added['p99']:.0f} ms)."
            )


def _rate(copies: list[dict[str, Any]]) -> str:
    return f"{statistics.median(copy['megabytes_per_second'] for copy in copies):.0f} MB/s"


def _cpu(copies: list[dict[str, Any]]) -> str:
    return f"{statistics.median(copy['cpu_seconds_per_gigabyte'] for copy in copies):.1f} CPU s/GB"
