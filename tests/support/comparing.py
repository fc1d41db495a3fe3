"""Compare logs of made records."""

from __future__ import annotations

from dataclasses import replace

from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.compare.difference import Difference, PartitionComparison
from kmirror.engine.compare.logs import compare_logs
from tests.support.made_logs import MadeLog, batches_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def record(offset: int, **changes: object) -> Record:
    plain = Record(offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 7), b"v%d" % offset, (("h", b"%d" % offset),))
    return replace(plain, **changes)  # type: ignore[arg-type]


def records(start: int, end: int) -> list[Record]:
    return [record(offset) for offset in range(start, end)]


def compare(
    source: MadeLog | list[Record], destination: MadeLog | list[Record], start: int = 0, end: int = 100
) -> PartitionComparison:
    one, other = (log if isinstance(log, MadeLog) else MadeLog(batches_of(log)) for log in (source, destination))
    return compare_logs(one, other, start, end)


def difference(
    source: MadeLog | list[Record], destination: MadeLog | list[Record], start: int = 0, end: int = 100
) -> Difference:
    found = compare(source, destination, start, end)
    assert not found.equal
    assert found.first_difference is not None
    return found.first_difference
