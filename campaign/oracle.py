"""The judge: a process of its own that reads both clusters with librdkafka and knows nothing of kmirror.

`python -m campaign.oracle QUESTION.json` prints a JSON list of violations; an empty one is a pass. The question names
the clusters, the file of what the source acknowledged, and the topics with what is claimed of them:
a copy that goes on has all that the source shows, at the same offsets with the same bytes, and ends where it ends; one
that was stopped ends where that was told, and has all that the source has below. What the source acknowledged is there,
nothing else is. Offsets begin where the later of both logs begins, and of a compacted log either side may have removed
what a later record of its key replaces.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_PATIENCE_S = 60.0
_MOST_TOLD = 5


class Record(NamedTuple):
    """What is compared of a record; `is_whole` where its value has the checksum that its writer gave it."""

    key: bytes | None
    value: int
    headers: int
    timestamp: tuple[int, int]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What a consumer sees of a partition: where its log begins and ends, and the records by offset."""

    start: int
    end: int
    records: Mapping[int, Record]


def read(servers: str, topic: str, partition: int, isolation: str) -> Seen:
    """Read a partition from its beginning to its end.

    Raises:
        TimeoutError: its end is not reached in time.
    """
    end = _end(servers, topic, partition, isolation)
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "campaign-oracle",
        "enable.auto.commit": False,
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "check.crcs": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    records: dict[int, Record] = {}
    try:
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_PATIENCE_S, cached=False)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            message = consumer.poll(1.0)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition} at {servers}: read {len(records)} records, not to {end}")
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                    return Seen(start, end, records)
                continue
            deadline = time.monotonic() + _PATIENCE_S
            value, offset = message.value() or b"", message.offset()
            assert offset is not None
            headers = zlib.crc32(repr(message.headers()).encode())
            whole = _is_whole(topic, value)
            records[offset] = Record(message.key(), zlib.crc32(value), headers, message.timestamp(), whole)
    finally:
        consumer.close()


def _is_whole(topic: str, value: bytes) -> bool:
    head, _, checksum = value.rpartition(b"|")
    return value.startswith(topic.encode() + b"|") and checksum == b"%08x" % zlib.crc32(head)


def _end(servers: str, topic: str, partition: int, isolation: str) -> int:
    from confluent_kafka import IsolationLevel

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    place = TopicPartition(topic, partition)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return int(admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(20).offset)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def judge(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the violations."""
    acknowledged = _acknowledged(Path(question["acks"]))
    found: list[dict[str, Any]] = []
    for claim in question["topics"]:
        for partition in range(claim["partitions"]):
            name = claim["topic"]
            source = read(question["source"], name, partition, "read_committed")
            copy = read(question["destination"], name, partition, "read_uncommitted")
            told = claim.get("ends", {}).get(str(partition))
            acks = acknowledged.get((name, partition), {})
            lost = claim.get("lost", {}).get(str(partition))
            for what, offsets in compare(source, copy, acks, told, lost, compacted=claim["compacted"]).items():
                found.append(
                    {
                        "topic": name,
                        "partition": partition,
                        "what": what,
                        "count": len(offsets),
                        "offsets": sorted(offsets)[:_MOST_TOLD],
                        "source": [source.start, source.end],
                        "destination": [copy.start, copy.end],
                        "told": told,
                    }
                )
    return found


def compare(
    source: Seen,
    copy: Seen,
    acks: Mapping[int, set[int]],
    told: int | None = None,
    lost: int | None = None,
    *,
    compacted: bool = False,
) -> dict[str, list[int]]:
    """Return what is wrong with a copy, by its kind, with the offsets.

    `told`: where the copy was told to end, and `lost` how many records are known to be lost behind that.
    """
    begin = max(source.start, copy.start)
    end = source.end if told is None else told
    wrong: dict[str, list[int]] = {}
    # a failover may write a marker behind the copy, which takes an offset and is never shown
    if copy.end != end and (told is None or copy.end != end + 1 or end in copy.records):
        wrong["ends elsewhere"] = [copy.end, end]
    if source.end < end:
        wrong["is longer than its source"] = [source.end, end]
    last_of_key = {record.key: offset for offset, record in sorted(copy.records.items())} if compacted else {}
    for offset, record in source.records.items():
        if begin <= offset < min(copy.end, end):
            there = copy.records.get(offset)
            # the destination's own cleaner may have removed it, for a later one of its key
            if there is None and not (compacted and last_of_key.get(record.key, -1) > offset):
                wrong.setdefault("lacks", []).append(offset)
            elif there is not None and there != record:
                wrong.setdefault("differs", []).append(offset)
    for offset, record in copy.records.items():
        if not record.is_whole:
            wrong.setdefault("is damaged", []).append(offset)
        elif offset >= begin and offset not in source.records and not compacted:
            wrong.setdefault("is not at the source", []).append(offset)
    for offset, values in acks.items():
        if begin <= offset < end:
            there = copy.records.get(offset)
            if there is None and not compacted:
                wrong.setdefault("was acknowledged and is lost", []).append(offset)
            elif there is not None and there.value not in values:
                wrong.setdefault("was acknowledged and is another one", []).append(offset)
    if lost is not None and lost > source.end - end:
        wrong["fewer are lost than was told"] = [lost, source.end - end]
    return wrong


def _acknowledged(path: Path) -> dict[tuple[str, int], dict[int, set[int]]]:
    found: dict[tuple[str, int], dict[int, set[int]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        topic, partition, offset, checksum = line.split()
        found.setdefault((topic, int(partition)), {}).setdefault(int(offset), set()).add(int(checksum, 16))
    return found


def main() -> int:
    """Judge what the question asks."""
    question = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    violations = judge(question)
    print(json.dumps(violations))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
