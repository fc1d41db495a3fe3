"""What a lane reports of all its partitions: rows that come with each report, and rows kept in pages. Pure.

A report (`ProgressRecord`) says how many pages (`LaneRowsRecord`) of the same run belong to it. Its own rows go before
those of pages; what it does not name is as the page has it, at the time of the report. A page of another run says
nothing: its partitions are not reported on until their lane has stored it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import LaneRowsRecord, ProgressRecord, ProgressRow


def joined(report: ProgressRecord, pages: Mapping[int, LaneRowsRecord]) -> ProgressRecord:
    """Return a report with all rows that it stands for; `pages` are those of its lane, of any run."""
    if not report.pages:
        return report
    rows: dict[TopicPartition, ProgressRow] = {}
    for index in range(report.pages):
        page = pages.get(index)
        if page is not None and page.run == report.run:
            rows |= by_place(page.rows)
    return replace(report, rows=tuple((rows | by_place(report.rows)).values()))


def by_place(rows: Iterable[ProgressRow]) -> dict[TopicPartition, ProgressRow]:
    """Return rows by their partitions."""
    return {TopicPartition(row.topic, row.partition): row for row in rows}
