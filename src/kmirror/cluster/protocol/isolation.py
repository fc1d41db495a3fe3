"""Find out which batches of one read_committed Fetch answer an application is shown (KIP-98).

Brokers return everything up to the last stable offset, markers and batches of aborted transactions included, together
with a list of aborted transactions, with producer id and first offset. The client has to filter:

* the list is unordered, and may name transactions that begin after the answer's bytes;
* a producer is in an aborted transaction from its first offset until its ABORT marker; it may commit others before and
  after in the same answer;
* compaction may leave a marker's batch without its record. Then its transaction has no records left, and has ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    CONTROL,
    HEADER,
    MAGIC_POSITION,
    PREFIX,
    TRANSACTIONAL,
    CorruptBatchError,
)
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.wire import read_varint

_SPECIAL = CONTROL | TRANSACTIONAL
#: A control record's key: version and type.
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0


class BatchKind(Enum):
    """What a batch is to an application."""

    #: Records that it is shown.
    DATA = "data"
    #: Records that it is not shown: their transaction was aborted.
    ABORTED = "aborted"
    #: A marker, which is never shown.
    CONTROL = "control"


class Isolation:
    """Classify the batches of one partition in one answer; call `kind` for each, in offset order.

    Plain batches, neither transactional nor markers, are always DATA and may be left out.
    """

    __slots__ = ("_aborted", "_coming")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: set[int] = set()

    def kind(self, batch: memoryview) -> BatchKind:
        """Return what `batch`, one whole stored batch, is.

        Raises:
            CorruptBatchError: a marker that cannot be read.
        """
        if batch[MAGIC_POSITION] < 2:
            return BatchKind.DATA  # transactions came with format 2
        if len(batch) < BATCH_OVERHEAD:
            raise CorruptBatchError(PREFIX.unpack_from(batch)[0], "it ends in the middle of its header")
        base_offset, _, _, _, _, attributes, last_delta, _, _, producer_id, _, _, count = HEADER.unpack_from(batch)
        if not attributes & _SPECIAL:
            return BatchKind.DATA
        while self._coming and self._coming[-1].first_offset <= base_offset + last_delta:
            self._aborted.add(self._coming.pop().producer_id)
        if attributes & CONTROL:
            if count == 0 or _marker_type(batch, base_offset) == _ABORT:
                self._aborted.discard(producer_id)
            return BatchKind.CONTROL
        return BatchKind.ABORTED if producer_id in self._aborted else BatchKind.DATA

    def rest(self, offset: int) -> list[AbortedTransaction]:
        """Return what remains of the list for the batches from `offset` on, after those before it."""
        return [*(AbortedTransaction(producer_id, offset) for producer_id in sorted(self._aborted)), *self._coming]


def _marker_type(batch: memoryview, base_offset: int) -> int:
    """Read a marker's type from its first record's key; control batches are never compressed."""
    try:
        _, position = read_varint(batch, BATCH_OVERHEAD)
        _, position = read_varint(batch, position + 1)
        _, position = read_varint(batch, position)
        length, position = read_varint(batch, position)
        if length < _CONTROL_KEY.size:
            raise ValueError("a marker's key is too short")
        return int(_CONTROL_KEY.unpack_from(batch, position)[1])
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptBatchError(base_offset, str(error) or "it ends too early") from None
