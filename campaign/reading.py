"""What consumers see of many partitions, read with librdkafka: where each starts and ends, and its records."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from campaign.contents import content_of

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
CREATE_TIME, LOG_APPEND_TIME = 1, 2
_PATIENCE_S = 60.0
_IN_VAIN = 8
_AT_ONCE = 2000

Place = tuple[str, int]


class Record(NamedTuple):
    """The compared properties of a record; `is_whole` unless its value has another checksum than its writer gave it."""

    key: bytes | None
    content: int
    timestamp: int
    timestamp_type: int = CREATE_TIME
    is_tombstone: bool = False
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """What a consumer sees of a partition: where its log begins and ends, and the records by offset."""

    start: int
    end: int
    records: Mapping[int, Record] = field(default_factory=dict)


def read(
    servers: str,
    places: Sequence[Place],
    isolation: str,
    *,
    self_checking: bool = False,
    silent: Collection[Place] = (),
) -> dict[Place, Seen]:
    """Read partitions from their beginnings to their current ends.

    `self_checking`: values identify themselves, and are checked. `silent`: of these a fetch may bring nothing although
    there is something, as of tiered logs; they are read until their end is reported.

    Raises:
        TimeoutError: an end is not reached in time.
    """
    starts, ends = bounds(servers, places, isolation)
    records: dict[Place, dict[int, Record]] = {place: {} for place in places}
    left = {place for place in places if starts[place] < ends[place]}
    fetches = _Fetches()
    consumer = Consumer(
        {
            "statistics.interval.ms": 500,
            "stats_cb": fetches.note,
            "bootstrap.servers": servers,
            "group.id": "campaign-oracle",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 1 << 20,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(*place, starts[place]) for place in left])
        deadline = time.monotonic() + _PATIENCE_S
        while left:
            messages = consumer.consume(_AT_ONCE, 0.2)
            at = time.monotonic()
            came = False
            for message in messages:
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                error = message.error()
                if error is None:
                    came = True
                    records[place][offset] = _record(message, self_checking=self_checking)
                    if offset + 1 >= ends[place]:
                        left.discard(place)
                elif error.code() == KafkaError._PARTITION_EOF:
                    came = True
                    if offset >= ends[place]:
                        left.discard(place)
            if came:
                fetches.restart()
                deadline = at + _PATIENCE_S
            elif fetches.are_in_vain and left.isdisjoint(silent):
                break
            if at > deadline:
                raise TimeoutError(f"{sorted(left)[:5]} at {servers} have no end")
    finally:
        consumer.close()
    return {place: Seen(starts[place], ends[place], records[place]) for place in places}


class _Fetches:
    """Count what each broker was asked since the last record, from librdkafka's statistics.

    A consumer never learns of an end after which nothing is visible: it has reached it when each broker was asked
    several times in vain. All but the last of these were answered.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def restart(self) -> None:
        """Start counting again."""
        self._before = {}

    @property
    def are_in_vain(self) -> bool:
        """Return whether no more is to come."""
        before = self._before
        asked = {name: count - before[name] for name, count in self._now.items() if name in before and count}
        return bool(asked) and min(asked.values()) >= _IN_VAIN

    def note(self, statistics: str) -> None:
        """Process new statistics."""
        brokers = json.loads(statistics)["brokers"].values()
        self._now = {one["name"]: one["req"].get("Fetch", 0) for one in brokers if one["nodeid"] >= 0}
        self._before = self._before or self._now


def _record(message: Message, *, self_checking: bool) -> Record:
    kind, timestamp = message.timestamp()
    key, value = message.key(), message.value()
    key = key.encode() if isinstance(key, str) else key
    value = value.encode() if isinstance(value, str) else value
    headers: Any = message.headers()
    whole = not self_checking or is_whole(message.topic() or "", value or b"")
    stamp = timestamp if kind else -1
    return Record(key, content_of(key, value, headers), stamp, kind or CREATE_TIME, value is None, whole)


def is_whole(topic: str, value: bytes) -> bool:
    """Return whether a value of `campaign.load` is as it was written."""
    head, _, checksum = value.rpartition(b"|")
    return value.startswith(topic.encode() + b"|") and checksum == b"%08x" % zlib.crc32(head)


def bounds(
    servers: str, places: Sequence[Place], isolation: str = UNCOMMITTED
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return where partitions start and end; with read_committed the end is the last stable offset.

    Raises:
        Exception: librdkafka's, when brokers do not answer in time.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            ends = list_offsets(servers, places, OffsetSpec.latest(), isolation)
            return list_offsets(servers, places, OffsetSpec.earliest(), isolation), ends
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def list_offsets(
    servers: str, places: Sequence[Place], wanted: OffsetSpec, isolation: str, seconds: float = 30.0
) -> dict[Place, int]:
    """Return the start, end or last stable offset of partitions.

    Raises:
        Exception: librdkafka's, when brokers do not answer in time.
        ValueError: a broker that is no longer a partition's leader answered without an offset (-1001).
    """
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    level = IsolationLevel.READ_COMMITTED if isolation == COMMITTED else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(*place): wanted for place in places}
    answers = admin.list_offsets(asked, isolation_level=level, request_timeout=seconds) if asked else {}
    found = {(place.topic, place.partition): int(answer.result(seconds).offset) for place, answer in answers.items()}
    if any(offset < 0 for offset in found.values()):
        raise ValueError(f"not every partition of {sorted(found)} has an offset now")
    return found
