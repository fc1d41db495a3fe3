"""Reports have the rows that change, pages those that do not: together they have every row, as of the last report."""

from __future__ import annotations

import random
from collections.abc import Iterable

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lane.reports.pages import COLD_SECONDS, MOST_LOOSE, Pages
from kmirror.engine.lanes.joined_reports import ALL_SECONDS, LaneReports
from kmirror.state.record_kinds import Record
from kmirror.state.records import LaneRowsRecord, PartitionState, ProgressRecord, ProgressRow
from kmirror.state.snapshot import State, by_partition

Rows = dict[TopicPartition, ProgressRow]


def row(partition: TopicPartition, offset: int) -> ProgressRow:
    return ProgressRow(*partition, offset, offset, 0, offset, None, PartitionState.MIRRORING)


def places(count: int) -> list[TopicPartition]:
    return [TopicPartition(f"t{number // 5}", number % 5) for number in range(count)]


def rows(count: int, offset: int = 0) -> Rows:
    return {partition: row(partition, offset) for partition in places(count)}


class Lane:
    """A lane that stores what it reports, and who reads it: commands, and the engine."""

    def __init__(self, generation: int = 1, log: dict[object, Record] | None = None) -> None:
        self.generation = generation
        self.pages = Pages()
        self.at = 100.0
        self.rows: Rows = {}
        self.log = log if log is not None else {}
        self.reports = LaneReports("L")
        self.heard: Rows = {}
        self.revisions = (0, 0)
        self.written = 0

    def look(self, changed: Rows, gone: Iterable[TopicPartition] = ()) -> list[ProgressRow]:
        """Report what changed; return the rows that the engine receives."""
        for partition in gone:
            del self.rows[partition]
        self.rows |= changed
        self.pages.take(changed, gone, self.at)
        return self.report()

    def report(self) -> list[ProgressRow]:
        run = "L", self.generation, 0
        unstored = self.pages.unstored()
        for number, kept in unstored.items():
            page = LaneRowsRecord("m", 0, number, *run, tuple(kept.values()))
            self.log[page.key] = page
            self.reports.take_page(page)
        loose = tuple(self.pages.loose.values())
        report = ProgressRecord(
            "m", 0, *run, "host", 1, int(self.at * 1000), loose, *(False, *self.revisions), pages=self.pages.count
        )
        self.log[report.key] = report
        self.pages.stored(unstored)
        self.written = len(report.rows) + sum(len(kept) for kept in unstored.values())
        reported, is_all = self.reports.take(report, self.at)
        if is_all:
            self.heard = {}
        self.heard |= by_partition(reported.rows)
        return list(reported.rows)

    def read(self) -> Rows:
        """Return what a command that begins now reads."""
        (report,) = State.of(self.log.values()).progress("m")
        return by_partition(report.rows)


def test_a_lane_of_few_partitions_stores_a_page_once_most_of_them_rest() -> None:
    lane = Lane()
    lane.look(rows(20))
    lane.at += COLD_SECONDS / 2
    lane.look(dict(list(rows(20, 1).items())[:10]))
    lane.at += COLD_SECONDS / 2
    lane.look({})
    assert lane.written == 20, "half of them are not most"
    lane.at += COLD_SECONDS / 2
    lane.look({})
    assert lane.written == 20
    lane.look({})
    assert lane.written == 0
    busy = places(20)[3]
    for offset in range(2, 20):
        lane.at += COLD_SECONDS + 1
        lane.look({busy: row(busy, offset)})
        assert lane.written == 1, "one that grows now and then is in reports: the page is not stored each time"
    assert lane.read() == lane.rows


def test_idle_rows_are_stored_once_and_are_as_old_as_the_last_report() -> None:
    lane = Lane()
    lane.look(rows(2_500))
    assert len(lane.pages.loose) <= MOST_LOOSE
    lane.at += COLD_SECONDS
    lane.look({})
    lane.at += 2
    assert lane.look({}) == []
    assert lane.written == 0
    (report,) = State.of(lane.log.values()).progress("m")
    assert (len(report.rows), report.time_ms) == (2_500, 112_000)
    busy = places(2_500)[7]
    assert lane.look({busy: row(busy, 9)}) == [row(busy, 9)]
    assert lane.written == 1
    assert lane.read() == lane.rows
    # it is as it was stored: reported once, then no more
    assert lane.look({busy: row(busy, 0)}) == [row(busy, 0)]
    assert lane.written == 0
    assert lane.read() == lane.rows


def test_all_rows_are_reported_after_a_change_on_request_and_periodically() -> None:
    lane = Lane()
    lane.look(rows(300))
    lane.at += COLD_SECONDS
    assert lane.look({}) == []
    lane.revisions = (1, 0)
    assert len(lane.look({})) == 300
    assert lane.look({}) == []
    lane.reports.pass_on_all()
    assert len(lane.look({})) == 300
    lane.at += ALL_SECONDS
    assert len(lane.look({})) == 300
    assert lane.look({}) == []


def test_pages_of_another_run_say_nothing_until_they_are_stored_again() -> None:
    lane = Lane()
    lane.look(rows(300, 1))
    lane.at += COLD_SECONDS
    lane.look({})
    later = Lane(2, lane.log)
    later.look(rows(300, 2))
    assert later.read() == later.rows, "the old pages are no more part of it"
    later.at += COLD_SECONDS
    later.look({})
    lane.look({})
    lane.pages.store_again()
    lane.look({})
    zombie = lane.log["rows", "m", 0, 1]
    later.pages.store_again()
    later.look({})
    later.log[zombie.key] = zombie
    assert len(later.read()) == 200, "not reported on, rather than as an old run saw it"
    assert isinstance(zombie, LaneRowsRecord)
    later.reports.take_page(zombie)
    assert later.look({}) == []
    later.pages.store_again()
    later.look({})
    assert later.read() == later.rows


def test_a_page_that_is_not_known_to_be_stored_is_stored_again() -> None:
    pages = Pages()
    pages.take(rows(2_000), (), 0.0)
    first = pages.unstored()
    assert pages.unstored() == first
    partition = next(iter(first[0]))
    pages.take({}, [partition], 1.0)
    pages.stored(first)
    (again,) = pages.unstored().values()
    assert again == {one: kept for one, kept in first[0].items() if one != partition}


def test_reports_and_pages_together_have_all_rows_of_the_lane() -> None:
    """Random work: partitions that grow or not, come and go; every reader agrees after each report."""
    chance = random.Random(7)
    for _ in range(6):
        lane = Lane()
        everything = places(chance.choice([90, 150, 400, 1_300]))
        for _ in range(25):
            lane.at += chance.choice([1, 1, 2, COLD_SECONDS])
            here = list(lane.rows)
            some = chance.choice([0, 3, 40, len(everything)])
            changed = chance.sample(everything, min(some, len(everything)))
            gone = chance.sample(here, min(chance.choice([0, 0, 5]), len(here)))
            came = {partition: row(partition, chance.randrange(3)) for partition in changed if partition not in gone}
            if came.keys() - lane.rows.keys() or gone:
                lane.revisions = (lane.revisions[0] + 1, 0)
            lane.look(came, gone)
            assert lane.read() == lane.rows
            assert lane.heard == lane.rows
            assert len(lane.pages.loose) <= MOST_LOOSE
