"""Define archives: ordinary topics that keep the records of a topic before it is deleted or rewritten.

`<topic>.kmirror-archive.<n>` has the same number of partitions. Each has records of the same partition of the topic, in
order, with unchanged key, value, headers and timestamp, and three additional headers at the end, whose values are
decimal numbers: the original offset and leader epoch of the record (−1 without one), and its timestamp.

Our filler, which represents offsets below a log's start, is not archived. Records of applications always are, even if
they look the same: filler has a producer id that no broker assigns.

Archives are never deleted by kmirror, and never mirrored. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.filler import FILLER_KEY, is_filler
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.engine.compare.visible_log import VisibleBatch
from kmirror.errors import UsageError

OFFSET_HEADER = "kmirror.offset"
LEADER_EPOCH_HEADER = "kmirror.leader.epoch"
TIMESTAMP_HEADER = "kmirror.timestamp"

_INFIX = ".kmirror-archive."
_ARCHIVE = re.compile(re.escape(_INFIX) + r"([1-9][0-9]*)")
#: Kafka's limit for topic names, minus the infix and nine digits. Names must be one character shorter to stay whole, so
#: that no shortened name is that of another topic.
_BASE = 249 - len(_INFIX) - 9
_HASH_BYTES = 5

_NAMES = (OFFSET_HEADER, LEADER_EPOCH_HEADER, TIMESTAMP_HEADER)
_ENDLESS = str((1 << 63) - 1)
_LARGEST = str((1 << 31) - 1)
_TIMESTAMP_LIMITS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
#: The only one before KIP-937.
_TIMESTAMP_LIMITS_BEFORE_3_6 = ("message.timestamp.difference.max.ms",)

Header = tuple[str, bytes | None]
#: Offsets from the first to before the second.
Range = tuple[int, int]


def archive_name(topic: str, existing_names: Iterable[str]) -> str:
    """Return the name of the next archive of `topic`: number 1, or one more than the highest existing number.

    Brokers treat "." and "_" in topic names as the same, so archives whose names differ only in that count.
    """
    base = _base_of(topic)
    numbers = [
        int(found[1])
        for name in existing_names
        if _alike(name).startswith(_alike(base)) and (found := _ARCHIVE.fullmatch(name, len(base)))
    ]
    return f"{base}{_INFIX}{max(numbers, default=0) + 1}"


def archive_prefix(topic: str) -> str:
    """Return the common prefix of the names of all archives of `topic`."""
    return f"{_base_of(topic)}{_INFIX}"


def archives_of(topics: Iterable[str], existing_names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the archives of these topics among `existing_names`, in the order of their numbers."""
    by_base = {_base_of(topic): topic for topic in topics}
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in existing_names:
        base, infix, number = name.rpartition(_INFIX)
        if base in by_base and _ARCHIVE.fullmatch(infix + number):
            found[by_base[base]].append((int(number), name))
    return {topic: tuple(name for _, name in sorted(archives)) for topic, archives in found.items()}


def _base_of(topic: str) -> str:
    if len(topic) < _BASE:
        return topic
    digest = blake2b(topic.encode(), digest_size=_HASH_BYTES).hexdigest()
    return f"{topic[: _BASE - 1 - len(digest)]}-{digest}"


def _alike(name: str) -> str:
    return name.replace(".", "_")


def archive_settings(of_topic: TopicSettings | int) -> dict[str, str]:
    """Return the settings to create an archive with: it keeps everything, unchanged, for ever.

    `of_topic` are the settings of any topic of the cluster, or an error code: they show which names brokers know.
    """
    is_before_known = isinstance(of_topic, int) or _TIMESTAMP_LIMITS[0] in of_topic
    limits = _TIMESTAMP_LIMITS if is_before_known else _TIMESTAMP_LIMITS_BEFORE_3_6
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        **dict.fromkeys(limits, _ENDLESS),
        "max.message.bytes": _LARGEST,
        # a batch must fit into a segment, whatever the default of the brokers is
        "segment.bytes": str(1 << 30),
    }


def archive_producer_id(archive: TopicPartition) -> int:
    """Return the producer id that writes a partition of an archive."""
    digest = blake2b(f"archive\0{archive.topic}\0{archive.partition}".encode(), digest_size=8).digest()
    return FIRST_OWN_PRODUCER_ID | (int.from_bytes(digest) & (FIRST_OWN_PRODUCER_ID - 1))


class Origin(NamedTuple):
    """The original position of an archived record."""

    offset: int
    leader_epoch: int
    timestamp: int


def origin_headers(origin: Origin) -> tuple[Header, ...]:
    """Return the headers that are added to an archived record."""
    return tuple((name, b"%d" % value) for name, value in zip(_NAMES, origin, strict=True))


def origin_of(record: Record) -> tuple[Origin, tuple[Header, ...]] | None:
    """Return the origin of an archived record, and its original headers; None if it is not an archived record."""
    added, own = record.headers[-len(_NAMES) :], record.headers[: -len(_NAMES)]
    if tuple(name for name, _ in added) != _NAMES:
        return None
    try:
        return Origin(*(int(value or b"") for _, value in added)), own
    except ValueError:
        return None


def checked_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Return the non-empty ranges; raises UsageError if they are not ordered and disjoint."""
    found = tuple((low, high) for low, high in ranges if low < high)
    ends = [offset for one in found for offset in one]
    if ends != sorted(ends) or min(ends, default=0) < 0:
        raise UsageError(f"the ranges {list(ranges)} are not in order", "give each offset once, lowest first")
    return found


def is_only_filler(batch: VisibleBatch) -> bool:
    """Return True if a batch is unchanged filler; quickly, because there may be millions of such records."""
    header = batch.header
    if header.producer_id < FIRST_OWN_PRODUCER_ID:
        return False
    return is_filler(batch.data[header.position : header.position + header.size_in_bytes])


def is_left_over_filler(batch: VisibleBatch, record: Record) -> bool:
    """Return True if a record of a batch is filler; compaction leaves single filler records."""
    ours = batch.header.producer_id >= FIRST_OWN_PRODUCER_ID
    return ours and record.key == FILLER_KEY and record.value is None and not record.headers
