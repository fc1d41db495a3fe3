"""Follow one partition as it grows, by long polls on its leader."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.committed import committed_records
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import (
    API_KEY,
    HIGHEST_VERSION,
    LOWEST_VERSION,
    FetchAnswer,
    FetchKey,
    FetchPosition,
    FetchSession,
)
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.records import Record
from kmirror.cluster.protocol.wire import FrameError
from kmirror.errors import BrokerError, OutcomeUnknown

_FETCH_BYTES = 4 << 20
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PollResult:
    """The records of one poll. `reached_end`: the leader has told, in this session, that its log ends after them."""

    records: list[Record]
    reached_end: bool


class PartitionFollower:
    """Read the records of one partition in order, from `look_back` before its end, or from its start if None.

    A broker that throttles us answers without records or partitions, whatever there is to read. So the end is what the
    leader says it is, and an answer that names no partition says only that it has not moved.

    With `read_committed`, records of aborted and open transactions are left out.
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
        self._offset: int | None = None
        self._connection: Connection | None = None
        self._session: FetchSession | None = None
        #: The end of the log as the session's answers last told it; None while none has.
        self._end: int | None = None
        self._key = FetchKey(b"", partition.partition, partition.topic)

    def close(self) -> None:
        """Close the connection; the next poll opens another."""
        if self._connection:
            self._connection.close()
        self._connection = self._session = None

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

    def _poll(self, max_wait_ms: int) -> PollResult:
        if self._connection is None or self._session is None or self._connection.must_be_replaced:
            self.close()
            self._connection = self._open()
            version = self._connection.version_for(API_KEY, LOWEST_VERSION, HIGHEST_VERSION, "Fetch")
            self._session = FetchSession(self._client.config.client_id, version)
        if not self._session.continues:
            self._end = None
        connection, session, offset = self._connection, self._session, self._offset or 0
        session.want(self._key, FetchPosition(offset, None, None, _FETCH_BYTES))
        connection.wait_for_throttle()
        asked = session.exchange(max_wait_ms=max_wait_ms, max_bytes=_FETCH_BYTES, read_committed=self._read_committed)
        answer: FetchAnswer = connection.request(asked, timeout=max_wait_ms / 1000 + _GRACE_SECONDS)
        if answer.error_code:
            raise BrokerError(answer.error_code, code_name(answer.error_code), f"following {self._partition}")
        if not answer.partitions:
            # throttled, or nothing has changed since the last answer: whether that was the end is known by its offset
            return PollResult([], reached_end=not answer.throttle_time_ms and self._is_at_end)
        part = next((part for part in answer.partitions if part.key == self._key), None)
        if part is None:
            raise FrameError(f"{connection.address} responded for different partitions")
        if part.error_code == Code.OFFSET_OUT_OF_RANGE:
            self._offset = None
        if part.error_code:
            raise BrokerError(part.error_code, code_name(part.error_code), f"following {self._partition}")
        found = list(committed_records(part, offset))
        records = [record for _, record in found if record is not None]
        self._offset = found[-1][0] if found else offset
        self._end = part.last_stable_offset if self._read_committed else part.high_watermark
        is_silent = answer.throttle_time_ms > 0 and not part.records
        return PollResult(records, reached_end=not is_silent and self._is_at_end)

    @property
    def _is_at_end(self) -> bool:
        return self._offset is not None and self._end is not None and self._offset >= self._end

    def _open(self) -> Connection:
        topic, partition = self._partition
        leader = self._client.metadata([topic]).leader_address(self._partition)
        if leader is None:
            raise OutcomeUnknown(f"{self._partition} has no leader")
        self._key = FetchKey(leader.topic_id, partition, topic)
        if self._offset is None:
            start = self._client.list_offsets({self._partition: EARLIEST})[self._partition]
            end = self._client.list_offsets({self._partition: LATEST})[self._partition]
            if start.offset is None or end.offset is None:
                code = start.error_code or end.error_code
                raise BrokerError(code, code_name(code), f"looking up {self._partition}")
            self._offset = start.offset if self._look_back is None else max(start.offset, end.offset - self._look_back)
        return Connection.open(leader.host, leader.port, self._client.config)
