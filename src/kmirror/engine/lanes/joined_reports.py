"""What lanes report, joined from reports and pages; only rows that may have changed are passed on. Pure.

All rows of a lane are passed on when another run of it reports, when it has applied other changes, when the engine asks
for that since it may judge rows differently now, and periodically for safety.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import LaneRowsRecord, LaneRun, ProgressRecord, ProgressRow
from kmirror.state.snapshot import by_partition

_Rows = dict[TopicPartition, ProgressRow]

#: How often all rows are passed on.
ALL_SECONDS = 60.0


@dataclass(slots=True)
class _Lane:
    """What one run of a lane has reported."""

    run: LaneRun
    #: Rows by the number of their page: pages that the last report confirmed, and pages read after it.
    pages: dict[int, _Rows] = field(default_factory=dict)
    read: dict[int, _Rows] = field(default_factory=dict)
    loose: _Rows = field(default_factory=dict)
    #: The changes that it had applied with its last complete report: assigned up to, and revoked up to.
    applied: tuple[int, int] | None = None
    #: From when on the next report passes on all rows.
    all_at: float = 0.0

    def take(self, report: ProgressRecord) -> _Rows:
        """Take a report; return the rows that may have changed."""
        changed: _Rows = {}
        before, self.loose = self.loose, by_partition(report.rows)
        pages, self.read = self.read, {}
        for number, rows in pages.items():
            known = self.pages.get(number, {}) | before
            changed |= {place: row for place, row in rows.items() if known.get(place) != row}
        self.pages |= pages
        for number in [number for number in self.pages if number >= report.pages]:
            del self.pages[number]
        # rows that are no longer in reports are those of their page
        for place in before.keys() - self.loose.keys():
            if (row := self._kept(place)) is not None and row != before[place]:
                changed[place] = row
        return changed | self.loose

    def rows(self) -> _Rows:
        """Return all rows."""
        found: _Rows = {}
        for rows in self.pages.values():
            found |= rows
        return found | self.loose

    def _kept(self, place: TopicPartition) -> ProgressRow | None:
        return next((rows[place] for rows in self.pages.values() if place in rows), None)


class LaneReports:
    """Join what the lanes of one engine report; for one thread."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._lanes: dict[int, _Lane] = {}

    def take_page(self, page: LaneRowsRecord) -> None:
        """Take a page: the next report of its run confirms it."""
        if (lane := self._lane(page)) is not None:
            lane.read[page.page] = by_partition(page.rows)

    def take(self, report: ProgressRecord, at: float) -> tuple[ProgressRecord, bool]:
        """Take a report; return it with only the rows that may have changed, and whether these are all rows."""
        lane = self._lane(report)
        if lane is None:
            return replace(report, rows=()), False
        changed, applied = lane.take(report), (report.taken, report.given_up)
        is_all = applied != lane.applied or at >= lane.all_at
        if is_all:
            changed, lane.applied, lane.all_at = lane.rows(), applied, at + ALL_SECONDS
        return replace(report, rows=tuple(changed.values())), is_all

    def pass_on_all(self) -> None:
        """Pass on all rows with the next report of each lane."""
        for lane in self._lanes.values():
            lane.all_at = 0.0

    def _lane(self, record: ProgressRecord | LaneRowsRecord) -> _Lane | None:
        """Return what the run of this record has reported; None if it is not the current run of its lane."""
        if record.lease_id != self._lease_id:
            return None
        known = self._lanes.get(record.lane)
        if known is None or known.run < record.run:
            known = self._lanes[record.lane] = _Lane(record.run)
        return known if known.run == record.run else None
