"""An immutable, indexed snapshot of `__kmirror_state`, and changes to it.

Functions that decide take a `State` and return `Changes`; the store reads the one and writes the other.

A lane's report is joined with its pages. A report (`ProgressRecord`) has the number of pages (`LaneRowsRecord`) of the
same run that belong to it. Its own rows override those of pages; a row that only a page has still holds at the time of
the report. A page of another run does not count: its partitions have no report until their lane stores the page again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason, RefusedError, UsageError
from kmirror.settings.parsing import stored_settings
from kmirror.state.event_records import Event
from kmirror.state.group_records import GroupRecord, GroupsRecord
from kmirror.state.history_records import HistoryRecord
from kmirror.state.record_kinds import KINDS, Record, Unknown
from kmirror.state.records import (
    EngineRecord,
    Key,
    LaneRowsRecord,
    MirrorRecord,
    PartitionRecord,
    ProgressRecord,
    ProgressRow,
    TopicRecord,
)
from kmirror.state.rights_records import RightsRecord
from kmirror.state.workflow_records import WorkflowRecord

T = TypeVar("T")
StoredRecord = TypeVar(
    "StoredRecord",
    MirrorRecord,
    TopicRecord,
    PartitionRecord,
    ProgressRecord,
    EngineRecord,
    RightsRecord,
    GroupRecord,
    GroupsRecord,
    WorkflowRecord,
    HistoryRecord,
)


def unreadable_error(record: Unknown) -> RefusedError:
    """Return the error for a mirror with this record, which is left alone."""
    return RefusedError(
        f"the stored record {list(record.key)} cannot be read: {record.problem}",
        "use the kmirror version that wrote it, or a newer one",
        Reason.STATE_UNREADABLE,
    )


def checked(record: T) -> T | Unknown:
    """Return a record, or `Unknown` for a mirror's record whose settings this version cannot read."""
    if isinstance(record, MirrorRecord) and (problem := _settings_problem(tuple(record.settings.items()))):
        return Unknown(record.key, problem)
    return record


@lru_cache(maxsize=1024)
def _settings_problem(settings: tuple[tuple[str, str], ...]) -> str | None:
    # cached: each state that is read checks every mirror again
    try:
        stored_settings(dict(settings))
    except UsageError as error:
        return error.message
    return None


@dataclass(frozen=True, slots=True)
class Changes:
    """What one transaction is to write: whole records, tombstones, events."""

    records: tuple[Record, ...] = ()
    tombstones: tuple[Key, ...] = ()
    events: tuple[Event, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.tombstones or self.events)


@dataclass(frozen=True, slots=True)
class State:
    """All records by key, and in `unknown` those that this version cannot read; build it with `State.of`."""

    records: Mapping[Key, Record] = field(default_factory=dict)
    unknown: tuple[Unknown, ...] = ()
    _topics: Mapping[str, tuple[TopicRecord, ...]] = field(default_factory=dict, repr=False)
    _partitions: Mapping[tuple[str, str], tuple[PartitionRecord, ...]] = field(default_factory=dict, repr=False)
    _progress: Mapping[str, tuple[ProgressRecord, ...]] = field(default_factory=dict, repr=False)
    _pages: Mapping[tuple[str, int], Mapping[int, LaneRowsRecord]] = field(default_factory=dict, repr=False)
    _groups: Mapping[str, tuple[GroupRecord, ...]] = field(default_factory=dict, repr=False)
    _history: Mapping[str, tuple[HistoryRecord, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, records: Iterable[Record | Unknown]) -> State:
        """Index these records; each key must occur once."""
        known: dict[Key, Record] = {}
        unknown: list[Unknown] = []
        topics: defaultdict[str, list[TopicRecord]] = defaultdict(list)
        partitions: defaultdict[tuple[str, str], list[PartitionRecord]] = defaultdict(list)
        progress: defaultdict[str, list[ProgressRecord]] = defaultdict(list)
        pages: defaultdict[tuple[str, int], dict[int, LaneRowsRecord]] = defaultdict(dict)
        groups: defaultdict[str, list[GroupRecord]] = defaultdict(list)
        history: defaultdict[str, list[HistoryRecord]] = defaultdict(list)
        for record in map(checked, records):
            match record:
                case Unknown():
                    unknown.append(record)
                    continue
                case TopicRecord():
                    topics[record.mirror].append(record)
                case PartitionRecord():
                    partitions[record.mirror, record.topic].append(record)
                case ProgressRecord():
                    progress[record.mirror].append(record)
                case LaneRowsRecord():
                    pages[record.mirror, record.lane][record.page] = record
                case GroupRecord():
                    groups[record.mirror].append(record)
                case HistoryRecord():
                    history[record.mirror].append(record)
            known[record.key] = record
        return cls(
            known,
            tuple(unknown),
            {mirror: tuple(sorted(found, key=lambda topic: topic.topic)) for mirror, found in topics.items()},
            {names: tuple(sorted(found, key=lambda one: one.partition)) for names, found in partitions.items()},
            {mirror: tuple(sorted(found, key=lambda lane: lane.lane)) for mirror, found in progress.items()},
            pages,
            {mirror: tuple(sorted(found, key=lambda group: group.group)) for mirror, found in groups.items()},
            {mirror: tuple(sorted(found, key=lambda hour: hour.hour)) for mirror, found in history.items()},
        )

    def after(self, changes: Changes) -> State:
        """Return the state that these changes lead to."""
        records = {**self.records, **{record.key: record for record in changes.records}}
        return State.of([*(one for key, one in records.items() if key not in changes.tombstones), *self.unknown])

    def with_reports(self, reports: Iterable[EngineRecord | ProgressRecord | LaneRowsRecord]) -> State:
        """Return the state with these new reports of engines and lanes, without indexing all records again."""
        records, progress, pages = dict(self.records), dict(self._progress), dict(self._pages)
        for record in reports:
            records[record.key] = record
            match record:
                case ProgressRecord():
                    others = (one for one in progress.get(record.mirror, ()) if one.lane != record.lane)
                    progress[record.mirror] = tuple(sorted((*others, record), key=lambda lane: lane.lane))
                case LaneRowsRecord():
                    key = record.mirror, record.lane
                    pages[key] = {**pages.get(key, {}), record.page: record}
        return replace(self, records=records, _progress=progress, _pages=pages)

    @property
    def mirrors(self) -> tuple[MirrorRecord, ...]:
        found = [record for record in self.records.values() if isinstance(record, MirrorRecord)]
        return tuple(sorted(found, key=lambda mirror: mirror.name))

    def mirror(self, name: str) -> MirrorRecord | None:
        return self._get(MirrorRecord, ("mirror", name))

    def topics(self, mirror: str) -> tuple[TopicRecord, ...]:
        return self._topics.get(mirror, ())

    def topic(self, mirror: str, topic: str) -> TopicRecord | None:
        return self._get(TopicRecord, ("topic", mirror, topic))

    def partitions(self, mirror: str, topic: str) -> tuple[PartitionRecord, ...]:
        return self._partitions.get((mirror, topic), ())

    def partition(self, mirror: str, topic: str, partition: int) -> PartitionRecord | None:
        return self._get(PartitionRecord, ("partition", mirror, topic, partition))

    def engine(self, mirror: str) -> EngineRecord | None:
        return self._get(EngineRecord, ("engine", mirror))

    def progress(self, mirror: str) -> tuple[ProgressRecord, ...]:
        """Return the last report of each lane, with the rows of all its partitions."""
        return tuple(joined(report, pages) for report, pages in self.lanes(mirror))

    def lanes(self, mirror: str) -> tuple[tuple[ProgressRecord, Mapping[int, LaneRowsRecord]], ...]:
        """Return the last report of each lane as it is stored, and the pages of the lane."""
        reports = self._progress.get(mirror, ())
        return tuple((report, self._pages.get((mirror, report.lane), {})) for report in reports)

    def groups(self, mirror: str) -> tuple[GroupRecord, ...]:
        return self._groups.get(mirror, ())

    def group(self, mirror: str, group: str) -> GroupRecord | None:
        return self._get(GroupRecord, ("group", mirror, group))

    def groups_checked(self, mirror: str) -> GroupsRecord | None:
        return self._get(GroupsRecord, ("groups", mirror))

    def history(self, mirror: str) -> tuple[HistoryRecord, ...]:
        return self._history.get(mirror, ())

    def workflow(self, mirror: str, name: str) -> WorkflowRecord | None:
        return self._get(WorkflowRecord, ("workflow", mirror, name))

    def rights(self, mirror: str, topic: str) -> RightsRecord:
        """Return the stored rights of a mirror topic; an empty record if there are none."""
        return self._get(RightsRecord, ("rights", mirror, topic)) or RightsRecord(mirror, topic)

    def keys_of(self, mirror: str) -> tuple[Key, ...]:
        """Return every key of the mirror, of unknown kinds too: what deleting it removes."""
        keys = [*self.records, *(record.key for record in self.unknown)]
        return tuple(key for key in keys if key[1:2] == (mirror,))

    def unreadable(self, mirror: str | None = None) -> tuple[Unknown, ...]:
        """Return the records of a mirror, or of all, that a newer kmirror wrote and this version cannot read.

        Unknown kinds do not count: the version that wrote them does not need us to understand them. Nor do a mirror's
        history and the source's ACLs.
        """
        return tuple(
            record
            for record in self.unknown
            if record.key and record.key[0] in KINDS.keys() - {"history", "acls"} and mirror in (None, *record.key[1:2])
        )

    def require_readable(self, mirror: str) -> None:
        """Raise RefusedError if a newer kmirror wrote records of this mirror that this version cannot read."""
        for record in self.unreadable(mirror):
            raise unreadable_error(record)

    def _get(self, kind: type[StoredRecord], key: Key) -> StoredRecord | None:
        found = self.records.get(key)
        return found if isinstance(found, kind) else None


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
