"""All kinds of records of `__kmirror_state`, and their JSON.

A key is a JSON array of the kind and the names, a value a JSON object with its schema version `v`. What a newer kmirror
wrote is never lost: unknown fields are kept in `extra`, and records that this version cannot read (an unknown kind, a
higher `v`, an unknown state) are decoded as `Unknown` and never changed.

Pure and light: lanes import this module in Spark workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any

from kmirror.cluster.protocol.wire import is_topic_name, parse_topic_id
from kmirror.state.assignment import COLUMNS, Assignment
from kmirror.state.client_records import ClientsRecord, SourceAclsRecord
from kmirror.state.group_records import GroupRecord, GroupsRecord
from kmirror.state.history_records import HistoryPoint, HistoryRecord
from kmirror.state.lane_change_record import LaneChangeRecord
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
from kmirror.state.stored import SCHEMA_VERSION, UNREADABLE, Rows, cut, dump, load, parse, read
from kmirror.state.workflow_records import WorkflowRecord

Record = (
    MirrorRecord
    | TopicRecord
    | PartitionRecord
    | ProgressRecord
    | LaneRowsRecord
    | LaneChangeRecord
    | EngineRecord
    | RightsRecord
    | ClientsRecord
    | SourceAclsRecord
    | GroupRecord
    | GroupsRecord
    | WorkflowRecord
    | HistoryRecord
)


@dataclass(frozen=True, slots=True)
class Removed:
    """A tombstone: the record of this key is deleted."""

    key: Key


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record that this version cannot read, and why; `key` is empty if even that cannot be read."""

    key: Key
    problem: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", cut(self.problem))


def encode(record: Record) -> tuple[bytes, bytes]:
    """Return the record's stored key and value."""
    key = record.key
    value: dict[str, Any] = {"v": SCHEMA_VERSION}
    if isinstance(record, ProgressRecord | LaneRowsRecord):
        value["columns"] = ProgressRow._fields if record.rows else ()
    elif isinstance(record, LaneChangeRecord):
        value["columns"] = COLUMNS
    value |= _fields_of(record, skip=len(key) - 1)  # the first fields are in the key
    if isinstance(record, HistoryRecord):
        # a column without a known value in this hour is left out
        used = [any(cell is not None for cell in column) for column in zip(*record.points, strict=True)]
        value["columns"] = list(compress(HistoryPoint._fields, used))
        value["points"] = [list(compress(point, used)) for point in record.points]
    return encode_key(key), dump(value, _stored)


def encode_key(key: Key) -> bytes:
    """Return the stored form of a key; with a null value it is a tombstone."""
    return dump(key)


def mirror_of(key: bytes) -> str | None:
    """Return the mirror that a stored key belongs to, without decoding the record; None for any other key."""
    try:
        _, mirror, *_ = _key_of(key)
    except UNREADABLE:
        return None
    return mirror if isinstance(mirror, str) else None


def decode(key: bytes, value: bytes | None) -> Record | Removed | Unknown:
    """Decode a stored record; never raises: an unreadable one becomes `Unknown`."""
    try:
        names = _key_of(key)
    except UNREADABLE as error:
        return Unknown((), f"its key cannot be read: {error}")
    if value is None:
        return Removed(names)
    kind = KINDS.get(str(names[0]))
    if kind is None:
        return Unknown(names, f"records of kind {names[0]!r} are not known to this version")
    try:
        stored = parse(value)
        if rows := _ROWS.get(str(names[0])):
            stored[rows] = Rows(stored.pop("columns"), stored[rows])
        record: Record = read(kind, stored, names[1:])
        if record.key != names:
            raise ValueError(f"its key has {len(names)} parts")
        if isinstance(record, TopicRecord):
            if not (is_topic_name(record.topic) and is_topic_name(record.source_topic)):
                raise ValueError("Kafka has no topics of this name")
            for topic_id in filter(None, (record.source_topic_id, record.destination_topic_id)):
                parse_topic_id(topic_id)
        return record
    except UNREADABLE as error:
        return Unknown(names, str(error))


def _stored(part: Any) -> dict[str, Any] | list[Any]:
    return [getattr(part, name) for name in COLUMNS] if isinstance(part, Assignment) else _fields_of(part)


def _fields_of(record: Any, skip: int = 0) -> dict[str, Any]:
    # fields that are not in the key, without None, plus unknown fields of a newer version
    known = {f.name: getattr(record, f.name) for f in fields(record)[skip:] if f.name != "extra"}
    extra: Mapping[str, Any] = record.extra
    return {name: value for name, value in known.items() if value is not None} | dict(extra)


def _key_of(key: bytes) -> Key:
    parsed = load(key)
    if not isinstance(parsed, list) or not parsed or not all(type(name) in (str, int) for name in parsed):
        raise ValueError("not an array of kind and names")
    return tuple(parsed)


#: The kinds that this version can read.
KINDS: Mapping[str, type[Record]] = {
    "mirror": MirrorRecord,
    "topic": TopicRecord,
    "partition": PartitionRecord,
    "progress": ProgressRecord,
    "rows": LaneRowsRecord,
    "change": LaneChangeRecord,
    "engine": EngineRecord,
    "rights": RightsRecord,
    "clients": ClientsRecord,
    "acls": SourceAclsRecord,
    "group": GroupRecord,
    "groups": GroupsRecord,
    "workflow": WorkflowRecord,
    "history": HistoryRecord,
}
#: By kind, the field whose rows are stored without column names, which are stored once in `columns`.
_ROWS = {"progress": "rows", "rows": "rows", "change": "taken", "history": "points"}
