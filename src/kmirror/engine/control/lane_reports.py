"""What lanes report, joined from reports and pages as they are read; only rows that may be news are passed on. Pure.

All rows of a lane are passed on when another run of it reports, when the changes that it goes by are others, when the
engine asks for it since it may judge rows otherwise now, and once in a while for safety's sake.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.lane_rows import by_place
from kmirror.state.records import LaneRowsRecord, LaneRun, ProgressRecord, ProgressRow

_Rows = dict[TopicPartition, ProgressRow]

#: After so long all rows are passed on again.
ALL_SECONDS = 60.0


@dataclass(slots=True)
class _Lane:
    """What one run of a lane has reported."""

    run: LaneRun
    #: Rows by the number of their page, as the last report found them; pages that were read after it.
    pages: dict[int, _Rows] = field(default_factory=dict)
    read: dict[int, _Rows] = field(default_factory=dict)
    loose: _Rows = field(default_factory=dict)
    standing: tuple[int, int] | None = None
    #: When all rows are to be passed on with the next report.
    all_at: float = 0.0

    def take(self, report: ProgressRecord) -> _Rows:
        """Take a report; return the rows that may be otherwise than before."""
        changed: _Rows = {}
        before, self.loose = self.loose, by_place(report.rows)
        pages, self.read = self.read, {}
        for number, rows in pages.items():
            known = self.pages.get(number, {}) | before
            changed |= {place: row for place, row in rows.items() if known.get(place) != row}
        self.pages |= pages
        for number in [number for number in self.pages if number >= report.pages]:
            del self.pages[number]
        # what is named no more is as its page has it
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
        """Take a page: it says something together with the next report of its run."""
        if (lane := self._lane(page)) is not None:
            lane.read[page.page] = by_place(page.rows)

    def take(self, report: ProgressRecord, at: float) -> tuple[ProgressRecord, bool]:
        """Take a report; return it with those rows alone that may be news, and whether these are all."""
        lane = self._lane(report)
        if lane is None:
            return replace(report, rows=()), False
        changed, standing = lane.take(report), (report.taken, report.given_up)
        is_all = standing != lane.standing or at >= lane.all_at
        if is_all:
            changed, lane.standing, lane.all_at = lane.rows(), standing, at + ALL_SECONDS
        return replace(report, rows=tuple(changed.values())), is_all

    def pass_on_all(self) -> None:
        """Have all rows passed on with the next report of each lane."""
        for lane in self._lanes.values():
            lane.all_at = 0.0

    def _lane(self, said: ProgressRecord | LaneRowsRecord) -> _Lane | None:
        """Return what is known of the run that says this; None when it is not, or no more, the one that counts."""
        if said.lease_id != self._lease_id:
            return None
        known = self._lanes.get(said.lane)
        if known is None or known.run < said.run:
            known = self._lanes[said.lane] = _Lane(said.run)
        return known if known.run == said.run else None
