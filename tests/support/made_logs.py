"""Logs of hand-made batches, as the comparison of two logs reads them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    CONTROL,
    HEADER,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    batch_headers,
)
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.engine.compare.visible_log import VisibleBatch, visible_batches


def batches_of(log: Iterable[Record], size: int = 10, codec: str = "none") -> list[bytearray]:
    """Return batches of up to `size` records; a missing offset begins a new one."""
    made: list[list[Record]] = []
    for one in log:
        if not made or len(made[-1]) == size or made[-1][-1].offset + 1 != one.offset:
            made.append([])
        made[-1].append(one)
    return [make_batch(batch, compression_type=codec) for batch in made]


def stamped(batch: bytearray, **changes: int) -> bytearray:
    """Return the batch with some of its header's fields changed, its true length, and a valid checksum."""
    base_offset, _, *fields = HEADER.unpack_from(batch)
    header = BatchHeader(0, len(batch), base_offset, *fields)._replace(**changes)
    out = bytearray(batch)

    def pack(crc: int) -> None:
        written = header._replace(crc=crc)
        HEADER.pack_into(out, 0, written.base_offset, len(out) - LOG_OVERHEAD, *written[3:])

    pack(0)
    pack(crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
    return out


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    """Return a transaction marker."""
    batch = make_batch([Record(offset, 0, b"\0\0\0\1" if commit else b"\0\0\0\0", b"\0\0\0\0\0\0")])
    return stamped(batch, attributes=CONTROL | TRANSACTIONAL, producer_id=producer_id, producer_epoch=0)


@dataclass
class MadeLog:
    """A log of hand-made batches, all in one fetch answer."""

    stored: list[bytearray]
    floor: int = 0
    ended_at: int | None = None
    log_end_offset: int | None = None
    compacted: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    scans: int = 0
    has_open_transaction: bool = False

    def batches(self) -> Iterator[VisibleBatch]:
        data = memoryview(b"".join(self.stored))
        yield from visible_batches(data, batch_headers(data), self.aborted)

    def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]:
        self.scans += 1
        for batch in self.batches():
            for one in batch.records():
                if (start or 0) <= one.offset and (end is None or one.offset < end):
                    yield one

    def is_compacted(self) -> bool:
        return self.compacted
