"""The stored results, and the tables of README.md and docs/distance.md made from them, never by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.far.cases import DESTINATION_FAR, STOCK, Case, every
from bench.far.raw import CONNECTIONS
from bench.processes import REPOSITORY

RESULTS = REPOSITORY / "docs" / "results" / "far.json"
README = REPOSITORY / "README.md"
PAGE = REPOSITORY / "docs" / "distance.md"
BEGIN, END = "<!-- written by: python -m bench.far --page -->\n", "<!-- end -->\n"
_HOSTS = {STOCK: "stock", "large": "large"}
_NONE = "–"
Row = Mapping[str, Any]


def merged(stored: Mapping[str, Any], machine: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return the results with a row that replaces the one of the same case, in the order of the cases."""
    new = {**row, "cpu": machine["cpu"]}
    rows = {old["key"]: old for old in stored.get("rows", ())} | {row["key"]: new}
    order = {case.key: number for number, case in enumerate(every())}
    ordered = sorted(rows.values(), key=lambda one: order.get(one["key"], len(order)))
    return {"machine": dict(machine), "rows": ordered}


def store(machine: Mapping[str, Any], row: Row, path: Path = RESULTS) -> None:
    """Write a row into the results' file."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(merged(before, machine, row), indent=1) + "\n", encoding="utf-8")


def readme_table(results: Mapping[str, Any]) -> str:
    """Return README's table: one distance, the source far away."""
    rows = [row for row in results["rows"] if _shown_in_readme(Case(**row["case"]))]
    return _text([*_copies(rows, short=True), *_latency_lines(rows)])


def page_tables(results: Mapping[str, Any]) -> str:
    """Return the tables of docs/distance.md: every case."""
    machine, rows = results["machine"], results["rows"]
    days = sorted({row["measured_at"][:10] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    head = (
        f"Measured {when} with `python -m bench.far`: {machine['cores']} cores of {_cpus(rows)} for both clusters,"
        f" link and copier, {machine['system']}, Kafka {machine['kafka']}, kmirror {machine['kmirror']}."
    )
    return _text([head, "", *_copies(rows, short=False), *_verified_lines(rows), *_latency_lines(rows)])


def _cpus(rows: list[Row]) -> str:
    """Return the processors that rows were measured with; if there are several, for which round trips."""
    trips: dict[str, set[int]] = {}
    for row in rows:
        trips.setdefault(row["cpu"], set()).add(row["case"]["round_trip_ms"])
    if len(trips) == 1:
        return next(iter(trips))
    return " and of ".join(f"{cpu} ({', '.join(map(str, sorted(of)))} ms)" for cpu, of in sorted(trips.items()))


def write_tables() -> None:
    """Replace the tables of README.md and docs/distance.md."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    pages: list[tuple[Path, Callable[[Mapping[str, Any]], str]]] = [(README, readme_table), (PAGE, page_tables)]
    for page, table in pages:
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        page.write_text(before + BEGIN + table(results) + END + rest.partition(END)[2], encoding="utf-8")


def _shown_in_readme(case: Case) -> bool:
    plain = Case(case.round_trip_ms, case.broker_kind, case.host, case.partitions, latency=case.latency)
    return case == plain and case.round_trip_ms == Case().round_trip_ms


def _copies(rows: list[Row], *, short: bool) -> Iterator[str]:
    where = ["brokers", "hosts", "partitions"] if short else ["round trip", "brokers", "hosts", "partitions", "besides"]
    raw = " / ".join(map(str, CONNECTIONS))
    yield f"| {' | '.join(where)} | kmirror | MirrorMaker 2, tuned | ratio | raw fetches over {raw} connections |"
    yield "|---" * (len(where) + 4) + "|"
    for row in rows:
        case = Case(**row["case"])
        if case.latency:
            continue
        cells = [case.broker_kind, _HOSTS[case.host], str(case.partitions)]
        if not short:
            cells = [f"{case.round_trip_ms} ms", *cells, _besides(case)]
        ours, theirs = (_rate(row, contender) for contender in ("kmirror", "mirrormaker"))
        ratio = f"{ours / theirs:.1f} ×" if ours and theirs else _NONE
        brought = [row["raw"].get(str(count)) for count in CONNECTIONS]
        raw = " / ".join(_number(rate) for rate in brought) if any(brought) else _NONE
        cells += [*(f"{_number(rate)} MB/s" if rate else _NONE for rate in (ours, theirs)), ratio, raw]
        yield f"| {' | '.join(cells)} |"


def _latency_lines(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        case = Case(**row["case"])
        if not case.latency:
            continue
        added = [
            f"{name} {latency['added_ms']['p50']:.0f} ms (99 %: {latency['added_ms']['p99']:.0f} ms)"
            for contender, name in (("kmirror", "kmirror"), ("mirrormaker", "MirrorMaker 2"))
            if (latency := row["latencies"].get(contender))
        ]
        far = "to a destination" if case.far == DESTINATION_FAR else "from a source"
        yield ""
        yield (
            f"When caught up, {far} {case.round_trip_ms} ms away, 200 records a second, a copy adds:"
            f" {', '.join(added)}. One way is {case.round_trip_ms // 2} ms."
        )


def _verified_lines(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        case, rate = Case(**row["case"]), row.get("verified")
        if rate:
            brokers = f"{case.broker_kind} brokers {case.round_trip_ms} ms away"
            yield ""
            yield f"`kmirror verify`, its start included, read {_number(rate)} MB/s of each side with {brokers}."


def _besides(case: Case) -> str:
    found = [f"{case.brokers} brokers each"] if case.brokers > 1 else []
    found += ["destination far"] if case.far == DESTINATION_FAR else []
    found += [f"1 packet in {case.lost_one_in:,} lost"] if case.lost_one_in else []
    return ", ".join(found)


def _rate(row: Row, contender: str) -> float | None:
    copy = row["copies"].get(contender)
    return copy["megabytes_per_second"] if copy else None


def _number(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:.1f}" if rate < 9.95 else f"{rate:.0f}"


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
