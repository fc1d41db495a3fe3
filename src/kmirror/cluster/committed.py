"""Read the committed records of one partition of a topic that is looked up again and again, in one turn where possible.

While the leader is known it is asked at once for the topic, for the high watermark and for what follows an offset. It
carries out these requests in this order, so all that was committed before the high watermark was read is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.connection import UnsupportedVersionError
from kmirror.cluster.protocol import list_offsets
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.batch import OversizedBatchError, batch_headers
from kmirror.cluster.protocol.batch_records import Record, read_records
from kmirror.cluster.protocol.codes import LEADER_MOVED, Code
from kmirror.cluster.protocol.fetch import FetchedAlone, FetchedPartition, FetchTarget
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.metadata import ClusterMetadata, LeaderAddress, TopicPartition
from kmirror.cluster.protocol.wire import Exchange, FrameError, format_topic_id
from kmirror.cluster.topics.leaders import is_older, newer_leader
from kmirror.errors import OutcomeUnknown, UnreachableError

#: All that one answer may have: one answer brings the whole of a usual topic.
_ANSWER_BYTES = 32 << 20
#: The most bytes that a batch may expand to, as a small one can expand to gigabytes. kmirror's have half a megabyte, or
#: one record: the largest are of groups, with 5 MB for 100,000 partitions.
_SECTION_BYTES = 16 << 20
#: What a record takes in memory besides its key and its value, about.
_RECORD_BYTES = 256
#: Another leader, or another topic of the same name.
_LOOK_AGAIN = LEADER_MOVED | {Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID}


@dataclass(frozen=True, slots=True)
class Look:
    """What a leader answered: the topic's id, the high watermark, and what it returned from `offset` on if it did."""

    topic_id: str | None
    end: int
    offset: int
    part: FetchedPartition | None


class CommittedReader:
    """Read from one partition's leader, which may be `known` already.

    Nothing is repeated: None says that there was no useful answer.
    """

    def __init__(
        self,
        client: ClusterClient,
        partition: TopicPartition,
        known: ClusterMetadata | None = None,
        answered_epoch: int | None = None,
    ) -> None:
        self._client = client
        self._partition = partition
        #: What the leader goes by that was last asked for its end.
        self._known = known
        self._leader: LeaderAddress | None = None if known is None else known.leader_address(partition)
        #: Who led when it was last asked for its end, by whoever answered: at `known`, a leader with `answered_epoch`.
        self.asked: LeaderAddress | None = None
        if self._leader is not None and answered_epoch is not None:
            self.asked = self._leader._replace(leader_epoch=answered_epoch)
        #: The id of the topic that `look` saw.
        self._topic_id: bytes | None = None

    def look(self, offset: int, timeout: float, metadata: ClusterMetadata | None = None) -> Look | None:
        """Ask the leader for the topic, unless `metadata` was just read, for its end, and for what follows `offset`."""
        leader = self._leader if metadata is None else metadata.leader_address(self._partition)
        self._leader = None
        if leader is None:
            return None
        asked = [self._end(leader), self._fetch(leader, offset, 0)]
        if metadata is None:
            asked.insert(0, metadata_codec.exchange([self._partition.topic]))
        try:
            connection = self._client.connect(leader.node_id, leader.host, leader.port, timeout=timeout)
            *described, ends, fetched = connection.request_all(asked, timeout=timeout)
        except (UnreachableError, OutcomeUnknown, FrameError, UnsupportedVersionError):
            return None
        known: ClusterMetadata = described[0] if metadata is None else metadata
        if known.leader_address(self._partition) != leader:
            return None
        end = ends.get(self._partition)
        if end is None or end.error_code or end.offset is None:
            return None
        self._leader, self._topic_id, self.asked = leader, leader.topic_id, leader
        self._know(known)
        return Look(format_topic_id(leader.topic_id), end.offset, offset, self._part(fetched))

    def follow_newer(self, timeout: float) -> bool:
        """Return whether there is a newer leader than the one that was asked for the end; it is asked from now on.

        Raises:
            TimedOutError: there may be one.
        """
        if self._known is None:
            return False
        newer: ClusterMetadata | None = self._known
        if not is_older(self._partition, self.asked, self._known):
            newer = newer_leader(self._client, self._partition, self._known, timeout)
        if newer is not None:
            self.follow(newer)
        return newer is not None

    def follow(self, found: ClusterMetadata) -> None:
        """Ask the leader that is named here from now on, unless the one that was asked is as new."""
        if is_older(self._partition, self.asked, found):
            self._know(found)
            self._leader = found.leader_address(self._partition)

    def fetch(self, offset: int, timeout: float, max_wait_ms: int) -> FetchedPartition | None:
        """Fetch from the topic that `look` saw; the leader may wait for more to come.

        Raises:
            UnreachableError: a broker refuses us.
        """
        try:
            if self._leader is None:
                found = self._client.metadata([self._partition.topic], timeout=timeout)
                self._leader = found.leader_address(self._partition)
            leader = self._leader
            if leader is None or self._topic_id not in (None, leader.topic_id):
                self._leader = None
                return None
            connection = self._client.connect(leader.node_id, leader.host, leader.port, timeout=timeout)
            if connection.is_throttled:
                return None
            asked = self._fetch(leader, offset, max_wait_ms)
            return self._part(connection.request(asked, timeout=timeout + max_wait_ms / 1000))
        except (UnreachableError, OutcomeUnknown, FrameError) as error:
            self._leader = None
            if isinstance(error, UnreachableError) and error.reason is not None:
                raise
            return None

    def _know(self, found: ClusterMetadata) -> None:
        # no broker names one that is cut off from the controllers; but it may answer
        brokers = found.brokers if self._known is None else {**self._known.brokers, **found.brokers}
        self._known = replace(found, brokers=brokers)

    def _end(self, leader: LeaderAddress) -> Exchange:
        wanted = {self._partition: (leader.leader_epoch, LATEST)}
        return list_offsets.exchange(wanted, list_offsets.CONSUMER, 0, self._client.config.request_timeout_ms)

    def _fetch(self, leader: LeaderAddress, offset: int, max_wait_ms: int) -> Exchange:
        return FetchTarget(leader, self._partition).exchange(offset, _ANSWER_BYTES, max_wait_ms)

    def _part(self, answer: FetchedAlone) -> FetchedPartition | None:
        if answer.part is None or answer.error_code in _LOOK_AGAIN:
            self._leader = None if answer.part is not None else self._leader
            return None
        return answer.part


def memory_of(key: bytes | None, value: bytes | None) -> int:
    """Return about how many bytes a record takes in memory."""
    return _RECORD_BYTES + len(key or b"") + len(value or b"")


def committed_records(part: FetchedPartition, offset: int) -> Iterator[tuple[int, Record | None]]:
    """Yield (next offset, record) of an answer from `offset` on; the record is None after each batch, shown or not.

    In place of the records of a batch that is larger than any of kmirror's comes one whose key says so.

    Raises:
        CorruptBatchError: a batch cannot be read.
    """
    isolation = Isolation(part.aborted_transactions)
    for header in batch_headers(part.records):
        batch = part.records[header.position : header.position + header.size_in_bytes]
        is_shown = isolation.kind(batch) is BatchKind.DATA
        if header.next_offset <= offset:
            continue
        try:
            for record in read_records(part.records, header, _SECTION_BYTES) if is_shown else ():
                if record.offset >= offset:
                    yield record.offset + 1, record
        except OversizedBatchError as error:
            yield header.next_offset, Record(header.next_offset - 1, header.max_timestamp, error.message.encode(), b"")
        yield header.next_offset, None
