"""The records to copy: data sets of batches that every process can recreate from the same numbers.

A data set is a pool of a few hundred to a few thousand different batches, sent in a cycle. Values are random bytes that
no codec can compress, so a stored gigabyte is a gigabyte of records. That favours tools which unpack what they copy:
compressible data would give them more records in each stored gigabyte.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kmirror.cluster.protocol.batch_records import Record, make_batch

PARTITIONS = 8
_POOL_BYTES = 48 << 20
_MOST_BATCHES = 20_000


@dataclass(frozen=True, slots=True)
class DataSet:
    """One shape of data: records per batch, record size and compression.

    A second holds as many small batches as a minute of large ones, so `share` is the part of the bytes that is copied.
    """

    key: str
    title: str
    compression_type: str
    records_per_batch: int
    value_bytes: int = 1000
    share: float = 1.0

    def pool(self, timestamp_ms: int) -> list[bytes]:
        """Make the different batches, ready to send: base offset 0, no producer, all records with this timestamp."""
        chance = random.Random(self.key)
        count = min(_MOST_BATCHES, _POOL_BYTES // (self.records_per_batch * self.value_bytes))
        return [self._batch(chance, timestamp_ms) for _ in range(count)]

    def _batch(self, chance: random.Random, timestamp_ms: int) -> bytes:
        records = [
            Record(offset, timestamp_ms, None, chance.randbytes(self.value_bytes))
            for offset in range(self.records_per_batch)
        ]
        return bytes(make_batch(records, compression_type=self.compression_type))


DATA_SETS = {
    data_set.key: data_set
    for data_set in (
        DataSet("256k", "256 KB batches, uncompressed", "none", 255),
        DataSet("16k", "16 KB batches, uncompressed", "none", 15),
        DataSet("16k-lz4", "16 KB batches, lz4", "lz4", 15),
        DataSet("2k", "2 records of 1 KB a batch", "none", 2, share=0.2),
        DataSet("2k-lz4", "2 records of 1 KB a batch, lz4", "lz4", 2, share=0.2),
        DataSet("1-record", "1 record of 1 KB a batch", "none", 1, share=0.2),
        DataSet("100b", "10 records of 100 bytes a batch", "none", 10, 100, share=0.1),
    )
}
#: For `bench.far`.
DISTANCE = DataSet("64k", "64 KB batches, uncompressed", "none", 63)
#: For warming up: JVMs compile hot code.
WARM_UP = DATA_SETS["2k"]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a data set a topic holds: `batches` per partition, `stored_bytes` and `records` in total."""

    batches: int
    stored_bytes: int
    records: int
    partitions: int = PARTITIONS

    @classmethod
    def of(cls, data_set: DataSet, megabytes: float, partitions: int = PARTITIONS) -> Amount:
        """Return the amount closest to that many megabytes (10^6 bytes) as stored, or to its share of them."""
        pool, megabytes = data_set.pool(0), megabytes * data_set.share
        mean = sum(map(len, pool)) / len(pool)
        batches = max(1, round(megabytes * 1e6 / partitions / mean))
        stored = sum(
            len(batch_of(pool, partition, index)) for partition in range(partitions) for index in range(batches)
        )
        return cls(batches, stored, partitions * batches * data_set.records_per_batch, partitions)


def data_set_of(key: str) -> DataSet:
    """Return the data set with this key."""
    return DISTANCE if key == DISTANCE.key else DATA_SETS[key]


def batch_of(pool: list[bytes], partition: int, index: int) -> bytes:
    """Return the batch at this place of a partition."""
    return pool[(index * PARTITIONS + partition) % len(pool)]
