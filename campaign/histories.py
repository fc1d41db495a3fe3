"""What is written to one generated log, step by step at random, and what of it applications must see. Pure.

Every property is drawn independently, so that all combinations occur: producers without an id, idempotent and
transactional ones that come and go, codecs, headers, values of every size, far-off timestamps, transactions that stay
open.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from campaign.batches import Made, encode_batch, encode_messages
from campaign.contents import content_of

_SEQUENCES = 1 << 31
_FAR_PAST = (0, 1, 86_400_000)
_FAR_FUTURE = (4_102_444_800_000, 253_402_300_799_999)
#: Long ago: brokers forget producers whose records are older than a day.
_LONG_AGO = 1_600_000_000_000
_CODECS = ("none", "none", "gzip", "snappy", "snappy-raw", "lz4", "zstd")
_OLD_CODECS = ("none", "gzip", "snappy")
_LARGE = 300_000
#: A transactional request holds batches of only one producer: to keep requests few, all logs share these.
TRANSACTIONAL_IDS = range(7_000_000, 7_000_006)


class LogKind(StrEnum):
    """What the topic of a log does with records."""

    PLAIN = "plain"
    STAMPED = "stamped"
    SWITCHED = "switched"
    COMPACTED = "compacted"
    COMPACTED_DELETED = "compacted-deleted"
    RECOMPRESSED = "recompressed"
    OLD = "old"

    @property
    def can_be_tiered(self) -> bool:
        """Return whether brokers move its segments to a store: not if they are compacted, or of an old format."""
        return not self.is_compacted and self is not LogKind.OLD

    @property
    def is_compacted(self) -> bool:
        """Return whether cleaners remove records that later ones replace."""
        return self in {LogKind.COMPACTED, LogKind.COMPACTED_DELETED}


_ANY_TIME = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}
_KEPT = {"retention.ms": "-1", "max.message.bytes": "4000000", **_ANY_TIME}
_CLEANED = {"segment.ms": "600000", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
#: The settings of source topics by kind; copies have those of OLD, and their source's cleanup.policy.
SETTINGS: Mapping[LogKind, Mapping[str, str]] = {
    LogKind.PLAIN: _KEPT,
    LogKind.STAMPED: {**_KEPT, "message.timestamp.type": "LogAppendTime"},
    LogKind.SWITCHED: _KEPT,
    LogKind.COMPACTED: {**_KEPT, **_CLEANED, "cleanup.policy": "compact"},
    LogKind.COMPACTED_DELETED: {**_KEPT, **_CLEANED, "cleanup.policy": "compact,delete"},
    LogKind.RECOMPRESSED: {**_KEPT, "compression.type": "zstd"},
    LogKind.OLD: _KEPT,
}


#: More settings of a topic whose segments, of some records each, are soon in the store alone.
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "segment.ms": "300000"}


@dataclass
class _Writer:
    """A producer as one log knows it; a transactional one raises its epoch with each marker if `bumps` (KIP-890)."""

    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    bumps: bool = False
    is_open: bool = False
    #: What its open transaction has written: offset and content.
    pending: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Write:
    """One batch to append, and its producer."""

    batch: bytes
    contents: tuple[int, ...]
    writer: _Writer | None

    @property
    def transaction(self) -> tuple[int, int] | None:
        """The producer id and epoch of a transactional one."""
        writer = self.writer
        return (writer.producer_id, writer.epoch) if writer and writer.is_transactional else None


class History:
    """One log: what is written to it next, and what of that was acknowledged."""

    def __init__(self, seed: str, kind: LogKind) -> None:
        self.kind = kind
        self._chance = chance = random.Random(seed)
        #: By offset, the contents that applications must see.
        self.acknowledged: dict[int, int] = {}
        self.features: set[str] = set()
        self._clock = chance.choice((_LONG_AGO, _LONG_AGO, 1_750_000_000_000))
        self._density = chance.uniform(0.1, 0.9)
        self._keys = chance.choice((4, 20, 100))
        self._has_far_times = not kind.is_compacted and chance.random() < 0.4
        self._has_headers = chance.random() < 0.5
        self._large_left = chance.choice((0,) * 9 + (2,))
        self._stays_open = chance.random() < 0.3
        ids = chance.sample(TRANSACTIONAL_IDS, chance.choice((0, 0, 1, 2, 3)))
        self._writers: list[_Writer | None] = [None] * chance.choice((0, 1, 1))
        self._writers += [_Writer(one, 0, 0, True, chance.random() < 0.5) for one in ids]
        if chance.random() < 0.6 or not self._writers:
            self._writers.append(self._idempotent())

    def _idempotent(self) -> _Writer:
        chance = self._chance
        sequence = chance.choice((0, 0, chance.randrange(_SEQUENCES), _SEQUENCES - chance.randrange(1, 60)))
        return _Writer(chance.randrange(1 << 20), chance.randrange(5), sequence, False)

    def old_beginning(self) -> bytes:
        """Return a segment in formats 0 and 1 with which the log begins."""
        chance, segment = self._chance, b""
        for magic in chance.choice(((0,), (1,), (0, 1))):
            for _ in range(chance.randrange(3, 12)):
                first = len(self.acknowledged)
                records = [self._record()._replace(headers=()) for _ in range(chance.choice((1, 1, 3, 20)))]
                # librdkafka takes 0 for no timestamp
                records = [one._replace(timestamp=max(1, one.timestamp)) for one in records]
                segment += encode_messages(records, magic, chance.choice(_OLD_CODECS), first)
                for number, one in enumerate(records):
                    self.acknowledged[first + number] = content_of(one.key, one.value)
                self.features.add(f"format {magic}")
        return segment

    def step(self) -> Write | None:
        """Return what to write next, if anything."""
        chance = self._chance
        if chance.random() > self._density:
            return None
        index = chance.randrange(len(self._writers))
        writer = self._writers[index]
        if writer is not None and not writer.is_transactional and chance.random() < 0.1:
            self.features.add("producer changed")
            if chance.random() < 0.5:
                self._writers[index] = writer = self._idempotent()
            else:
                writer.epoch, writer.sequence = writer.epoch + 1, 0
        records = [self._record() for _ in range(chance.choice((1, 1, 1, 2, 3, chance.randrange(4, 40))))]
        codec = chance.choice(_CODECS)
        self._note(records, codec)
        contents = tuple(content_of(one.key, one.value, one.headers) for one in records)
        if writer is None:
            return Write(encode_batch(records, codec), contents, None)
        ids = writer.producer_id, writer.epoch, writer.sequence
        batch = encode_batch(records, codec, *ids, is_transactional=writer.is_transactional)
        writer.sequence = (writer.sequence + len(records)) % _SEQUENCES
        writer.is_open = writer.is_transactional
        self.features.add("transactional" if writer.is_transactional else "idempotent")
        return Write(batch, contents, writer)

    def took(self, write: Write, base_offset: int) -> None:
        """Record that it was appended there."""
        placed = [(base_offset + number, content) for number, content in enumerate(write.contents)]
        if write.writer is not None and write.writer.is_transactional:
            write.writer.pending += placed
        else:
            self.acknowledged.update(placed)

    def forgotten(self, write: Write) -> None:
        """Record that it was refused: the broker does not know the producer's sequence. A new epoch begins at 0."""
        if write.writer is not None:
            write.writer.epoch, write.writer.sequence = write.writer.epoch + 1, 0
            self.features.add("producer forgotten")

    def endings(self, *, last: bool = False) -> list[tuple[int, int, bool]]:
        """End some transactions, with `last` all but those that stay open: producer id, epoch, commit or abort."""
        found = []
        chance = self._chance
        for writer in self._writers:
            if writer is None or not writer.is_open or (not last and chance.random() < 0.6):
                continue
            if last and self._stays_open:
                self.features.add("open transaction")
                continue
            is_commit = chance.random() < 0.6
            if writer.bumps:
                writer.epoch, writer.sequence = writer.epoch + 1, 0
            found.append((writer.producer_id, writer.epoch, is_commit))
            if is_commit:
                self.acknowledged.update(writer.pending)
            self.features.add("committed" if is_commit else "aborted")
            writer.pending, writer.is_open = [], False
        return found

    def _record(self) -> Made:
        chance = self._chance
        self._clock += chance.choice((0, 1, chance.randrange(50), chance.randrange(60_000)))
        timestamp = self._clock - chance.choice((0, 0, 0, chance.randrange(100_000)))
        if self._has_far_times and chance.random() < 0.05:
            timestamp = chance.choice((*_FAR_PAST, *_FAR_FUTURE))
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if self._has_headers:
            some = ((), (("h", b"1"), ("h", None)), (("ключ", chance.randbytes(9)), ("", b"")))
            headers = chance.choice(some)
        return Made(timestamp, self._key(), self._value(), headers)

    def _key(self) -> bytes | None:
        number = self._chance.randrange(self._keys)
        if number == 0:
            return b""
        if number == 1 and not self.kind.is_compacted:
            return None
        return b"key-%d" % number

    def _value(self) -> bytes | None:
        chance = self._chance
        if self._large_left and chance.random() < 0.05:
            self._large_left -= 1
            return chance.choice((chance.randbytes(_LARGE), b"large " * (_LARGE // 6)))
        text = b"text %d " % chance.randrange(1000) * chance.randrange(1, 20)
        return chance.choice((text, text, chance.randbytes(chance.randrange(300)), b"x", b"", None))

    def _note(self, records: Sequence[Made], codec: str) -> None:
        found = {f"codec {codec.removesuffix('-raw')}"}
        for one in records:
            if one.headers:
                found.add("headers")
            if one.key is None:
                found.add("null key")
            if one.value is None:
                found.add("tombstone" if self.kind.is_compacted else "null value")
            elif len(one.value) >= _LARGE:
                found.add("large record")
            elif not one.value:
                found.add("empty value")
            if one.timestamp <= _FAR_PAST[-1]:
                found.add("far past")
            if one.timestamp >= _FAR_FUTURE[0]:
                found.add("far future")
        self.features |= found
