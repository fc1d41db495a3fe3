"""Join a lane's report with its pages: rows that come with each report, and unchanged rows stored in pages. Pure.

A report (`ProgressRecord`) has the number of pages (`LaneRowsRecord`) of the same run that belong to it. Its own rows
override those of pages; a row that only a page has still holds at the time of the report. A page of another run does
not count: its partitions have no report until their lane stores the page again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import LaneRowsRecord, ProgressRecord, ProgressRow


def joined(report: ProgressRecord, pages: Mapping[int, LaneRowsRecord]) -> ProgressRecord:
    """Return a report with the rows of its pages; `pages` are those of its lane, of any run."""
    if not report.pages:
        return report
    rows: dict[TopicPartition, ProgressRow] = {}
    for index in range(report.pages):
        page = pages.get(index)
        if page is not None and page.run == report.run:
            rows |= by_partition(page.rows)
    return replace(report, rows=tuple((rows | by_partition(report.rows)).values()))


def by_partition(rows: Iterable[ProgressRow]) -> dict[TopicPartition, ProgressRow]:
    """Return rows by their partitions."""
    return {TopicPartition(row.topic, row.partition): row for row in rows}
