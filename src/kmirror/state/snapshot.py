"""An immutable, indexed snapshot of `__kmirror_state`, and changes to it.

Functions that decide take a `State` and return `Changes`; the store reads the one and writes the other.

A lane's report is joined with its pages. A report (`ProgressRecord`) has the number of pages (`LaneRowsRecord`) of the
same run that belong to it. Its own rows override those of pages; a row that only a page has still holds at the time of
the report. A page of another run does not count: its partitions have no report until their lane stores the page again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar, cast

from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
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

#: What is written again and again while mirrors are copied.
Report = EngineRecord | ProgressRecord | LaneRowsRecord | GroupsRecord | HistoryRecord


def unreadable_error(record: Unknown) -> RefusedError:
    """Return the error for a mirror with this record, which is left alone."""
    return RefusedError(
        f"the stored record {list(record.key)} cannot be read: {record.problem}",
        "use the kmirror version that wrote it, or a newer one; if none wrote it, remove it with a tombstone",
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
    """All records by key, and in `unknown` what this version cannot read; build it with `State.of`."""

    records: Mapping[Key, Record] = field(default_factory=dict)
    unknown: tuple[Unknown, ...] = ()
    #: The records whose keys differ only in the last name, in its order, by the rest of the key.
    _listed: Mapping[Key, tuple[Record, ...]] = field(default_factory=dict, repr=False)
    #: Who led the topic as it was read, by its own account; None if nobody did.
    leader: LeaderAddress | None = field(default=None, compare=False)

    @classmethod
    def of(cls, records: Iterable[Record | Unknown]) -> State:
        """Index these records; each key must occur once."""
        known: dict[Key, Record] = {}
        unknown: list[Unknown] = []
        for record in map(checked, records):
            if isinstance(record, Unknown):
                unknown.append(record)
            else:
                known[record.key] = record
        return cls(known, tuple(unknown), _listed(known))

    def after(self, changes: Changes) -> State:
        """Return the state that these changes lead to."""
        records = {**self.records, **{record.key: record for record in changes.records}}
        return State.of([*(one for key, one in records.items() if key not in changes.tombstones), *self.unknown])

    def with_reports(self, reports: Iterable[Report]) -> State:
        """Return the state with these new reports of engines and lanes, without indexing all records again."""
        new: dict[Key, Record] = {record.key: record for record in reports}
        lists = {key[:-1] for key in new}
        changed = {record.key: record for name in lists for record in self._listed.get(name, ())} | new
        return replace(self, records={**self.records, **new}, _listed={**self._listed, **_listed(changed)})

    @property
    def mirrors(self) -> tuple[MirrorRecord, ...]:
        return self._all(MirrorRecord, ("mirror",))

    def mirror(self, name: str) -> MirrorRecord | None:
        return self._get(MirrorRecord, ("mirror", name))

    def topics(self, mirror: str) -> tuple[TopicRecord, ...]:
        return self._all(TopicRecord, ("topic", mirror))

    def topic(self, mirror: str, topic: str) -> TopicRecord | None:
        return self._get(TopicRecord, ("topic", mirror, topic))

    def partitions(self, mirror: str, topic: str) -> tuple[PartitionRecord, ...]:
        return self._all(PartitionRecord, ("partition", mirror, topic))

    def partition(self, mirror: str, topic: str, partition: int) -> PartitionRecord | None:
        return self._get(PartitionRecord, ("partition", mirror, topic, partition))

    def engine(self, mirror: str) -> EngineRecord | None:
        return self._get(EngineRecord, ("engine", mirror))

    def progress(self, mirror: str) -> tuple[ProgressRecord, ...]:
        """Return the last report of each lane, with the rows of all its partitions."""
        return tuple(joined(report, pages) for report, pages in self.lanes(mirror))

    def last_rows(self, mirror: str) -> list[tuple[ProgressRecord, ProgressRow]]:
        """Return the rows of all lanes, oldest first, without those from before a topic was mirrored or rebuilt."""
        since = {topic.topic: max(topic.added_at_ms or 0, topic.rebuilt_at_ms or 0) for topic in self.topics(mirror)}
        reports = sorted(self.progress(mirror), key=lambda one: one.time_ms)
        return [(one, row) for one in reports for row in one.rows if one.time_ms >= since.get(row.topic, 0)]

    def lanes(self, mirror: str) -> tuple[tuple[ProgressRecord, Mapping[int, LaneRowsRecord]], ...]:
        """Return the last report of each lane as it is stored, and the pages of the lane."""
        return tuple(
            (report, {page.page: page for page in self._all(LaneRowsRecord, ("rows", mirror, report.lane))})
            for report in self._all(ProgressRecord, ("progress", mirror))
        )

    def groups(self, mirror: str) -> tuple[GroupRecord, ...]:
        return self._all(GroupRecord, ("group", mirror))

    def group(self, mirror: str, group: str) -> GroupRecord | None:
        return self._get(GroupRecord, ("group", mirror, group))

    def groups_checked(self, mirror: str) -> GroupsRecord | None:
        return self._get(GroupsRecord, ("groups", mirror))

    def history(self, mirror: str) -> tuple[HistoryRecord, ...]:
        return self._all(HistoryRecord, ("history", mirror))

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

    def _get(self, kind: type[T], key: Key) -> T | None:
        found = self.records.get(key)
        return found if isinstance(found, kind) else None

    def _all(self, _: type[T], names: Key) -> tuple[T, ...]:
        # the first name of a key decides the class of its record
        return cast("tuple[T, ...]", self._listed.get(names, ()))


def _listed(records: Mapping[Key, Record]) -> dict[Key, tuple[Record, ...]]:
    """Return records whose keys differ only in the last name, in its order, by the rest of the key."""
    found: defaultdict[Key, list[Key]] = defaultdict(list)
    for key in records:
        found[key[:-1]].append(key)
    return {names: tuple(records[key] for key in sorted(keys)) for names, keys in found.items()}


def joined(report: ProgressRecord, pages: Mapping[int, LaneRowsRecord]) -> ProgressRecord:
    """Return a report with the rows of its pages; `pages` are those of its lane, of any run."""
    if not report.pages:
        return report
    rows = by_partition(row for found in reversed([*rows_of(report, pages)]) for row in found)
    return replace(report, rows=tuple(rows.values()))


def rows_of(report: ProgressRecord, pages: Mapping[int, LaneRowsRecord]) -> Iterator[tuple[ProgressRow, ...]]:
    """Yield the rows of a report and of its pages; of a partition the first one counts."""
    yield report.rows
    for index in reversed(range(report.pages)):
        page = pages.get(index)
        if page is not None and page.run == report.run:
            yield page.rows


def by_partition(rows: Iterable[ProgressRow]) -> dict[TopicPartition, ProgressRow]:
    """Return rows by their partitions."""
    return {TopicPartition(row.topic, row.partition): row for row in rows}
