"""Follow one partition as it grows, by long polls on its leader."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.committed import committed_records, memory_of
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchedAlone, FetchTarget
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.wire import FrameError
from kmirror.cluster.topics.leaders import newer_leader
from kmirror.errors import BrokerError, OutcomeUnknown, TimedOutError

_FETCH_BYTES = 4 << 20
#: What the records of one poll take in memory; the next poll returns the rest.
_POLL_BYTES = 32 << 20
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """The records of one poll. `reached_end`: the leader has told that its log ends after them."""

    records: list[Record]
    reached_end: bool


class PartitionFollower:
    """Read the records of one partition in order, from `look_back` before its end, or from its start if None.

    A broker that throttles us answers without records or partitions, whatever there is to read. So the end is what the
    leader says it is, and an answer that names no partition says nothing.

    With `read_committed`, records of aborted and open transactions are left out. `beginnings` counts how often it began
    to read at that place: again after `begin_again`, in another topic of the name, and where its offset is gone.
    """

    def __init__(
        self,
        client: ClusterClient,
        partition: TopicPartition,
        *,
        look_back: int | None = None,
        read_committed: bool = False,
    ) -> None:
        self._client = client
        self._partition = partition
        self._look_back = look_back
        self._read_committed = read_committed
        self.beginnings = 0
        self._offset: int | None = None
        self._topic_id = b""
        self._connection: Connection | None = None
        self._target: FetchTarget | None = None
        #: By what the leader is followed; and what is known of a newer one, which is followed next.
        self._known: ClusterMetadata | None = None
        self._newer: ClusterMetadata | None = None

    def close(self) -> None:
        """Close the connection; the next poll opens another."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def begin_again(self) -> None:
        """Read all of it again with the next poll."""
        self._offset = None
        self.close()

    def poll(self, max_wait_ms: int) -> PollResult:
        """Wait at most `max_wait_ms` for new records.

        Raises:
            KmirrorError, OutcomeUnknown: nothing was read; poll again.
        """
        try:
            return self._poll(max_wait_ms)
        except BaseException:
            self.close()
            raise

    def is_certain(self, seconds: float) -> bool:
        """Return whether the leader that was polled still is one, by what the brokers of the other replicas know.

        If they know of a newer one, that is polled from now on. A leader that is cut off from its cluster answers as
        before, and its log does not grow; nor does that of one that waits for a replica which has just broken down.
        """
        try:
            if self._known is not None:
                self._newer = newer_leader(self._client, self._partition, self._known, seconds, strictly=False)
        except TimedOutError:
            return False
        if self._newer is not None:
            self.close()
        return self._known is not None and self._newer is None

    def _poll(self, max_wait_ms: int) -> PollResult:
        if self._connection is None or self._target is None or self._connection.must_be_replaced:
            self.close()
            self._connection, self._target = self._open()
        connection, offset = self._connection, self._offset or 0
        connection.wait_for_throttle()
        asked = self._target.exchange(offset, _FETCH_BYTES, max_wait_ms)
        answer: FetchedAlone = connection.request(asked, timeout=max_wait_ms / 1000 + _GRACE_SECONDS)
        part, code = answer.part, answer.error_code
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._offset = None
        if code:
            raise BrokerError(code, code_name(code), f"following {self._partition}")
        if part is None:
            if not answer.throttle_time_ms:
                raise FrameError(f"{connection.address} responded for different partitions")
            return PollResult([], reached_end=False)
        records, next_offset, room = list[Record](), offset, _POLL_BYTES
        for next_offset, record in committed_records(part, offset):  # noqa: B007 - the last one is used
            if record is not None:
                records.append(record)
                room -= memory_of(record.key, record.value)
            if room < 0:
                break
        self._offset = next_offset
        end = part.last_stable_offset if self._read_committed else part.high_watermark
        is_silent = answer.throttle_time_ms > 0 and not part.records
        return PollResult(records, reached_end=not is_silent and end is not None and self._offset >= end)

    def _open(self) -> tuple[Connection, FetchTarget]:
        self._known, self._newer = self._newer or self._client.metadata([self._partition.topic]), None
        leader = self._known.leader_address(self._partition)
        if leader is None:
            raise OutcomeUnknown(f"{self._partition} has no leader")
        if leader.topic_id != self._topic_id:
            self._offset, self._topic_id = None, leader.topic_id
        if self._offset is None:
            start = self._client.list_offsets({self._partition: EARLIEST})[self._partition]
            end = self._client.list_offsets({self._partition: LATEST})[self._partition]
            if start.offset is None or end.offset is None:
                code = start.error_code or end.error_code
                raise BrokerError(code, code_name(code), f"looking up {self._partition}")
            self._offset = start.offset if self._look_back is None else max(start.offset, end.offset - self._look_back)
            self.beginnings += 1
        # without an epoch: a broker that is elected again goes on
        target = FetchTarget(leader._replace(leader_epoch=-1), self._partition, self._read_committed)
        return Connection.open(leader.host, leader.port, self._client.config), target
