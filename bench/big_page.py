"""The page's table of what one large partition costs; for `bench.big`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.processes import REPOSITORY

RESULTS = REPOSITORY / "docs" / "results" / "big.json"
PAGE = REPOSITORY / "docs" / "verify.md"
BEGIN, END = "<!-- written by: python -m bench.big --page -->\n", "<!-- end -->"


def write_page() -> None:
    """Replace the table of docs/verify.md by the stored results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = page_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


def page_table(results: Mapping[str, Any]) -> str:
    """Return the page's table of the results."""
    machine, sizes = results["machine"], results["sizes"]
    lines = [
        f"Measured {machine['measured_at'][:10]} with `python -m bench.big`: {machine['cores']} cores for engine, Spark"
        f" and both clusters, shared with other work (a load of {machine['load_average']:.0f}), Kafka"
        f" {machine['kafka']}; one partition with records of 1 KB in batches of 256 KB, segments of 64 MB, one lane.",
        "",
        "| | " + " | ".join(f"{size['gigabytes']:g} GB" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    rows: list[tuple[str, Callable[[Any], str]]] = [
        ("first copy", lambda size: f"{size['copy_seconds']:.0f} s"),
        ("CPU of the lane, second tenth and last", lambda size: f"{_cpu(size, 1):.2f} and {_cpu(size, 9):.2f} s/GB"),
        ("memory, second tenth and last", lambda size: f"{_memory(size, 1)} and {_memory(size, 9)} MB"),
        ("engine killed: no copy for; sent twice", lambda size: _restart(size["restarts"][0])),
        ("engine stopped and started: the same", lambda size: _restart(size["restarts"][1])),
    ]
    rows += [(f"`{name}`" if " " not in name else name, partial(_step, at=at)) for at, name in _shown(sizes[0])]
    lines += [f"| {name} | " + " | ".join(map(cell, sizes)) + " |" for name, cell in rows]
    return "".join(f"{line}\n" for line in lines)


def _shown(size: Any) -> list[tuple[int, str]]:
    return [(at, step["command"]) for at, step in enumerate(size["steps"]) if not step["command"].startswith("run")]


def _cpu(size: Any, tenth: int) -> float:
    return float(size["tenths"][tenth]["cpu_seconds"] * 10 / size["gigabytes"])


def _memory(size: Any, tenth: int) -> int:
    return int(size["tenths"][tenth]["memory_megabytes"])


def _restart(restart: Any) -> str:
    sent_twice = restart["sent_twice_megabytes"]
    return f"{restart['pause_seconds']:.0f} s; " + (
        "not measured" if sent_twice is None else f"{max(0.0, sent_twice):.0f} MB"
    )


def _step(size: Any, at: int) -> str:
    step = size["steps"][at]
    return f"{step['seconds']:.0f} s, CPU {step['cpu_seconds']:.0f} s, {step['memory_megabytes']} MB"
