"""Read stored batches from one partition's leader, one blocking Fetch at a time."""

from __future__ import annotations

from collections.abc import Iterator

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.fetch import (
    API_KEY,
    HIGHEST_VERSION,
    LOWEST_VERSION,
    FetchedPartition,
    FetchKey,
    FetchPosition,
    FetchSession,
)
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.errors import BrokerError, OutcomeUnknown, UnreachableError

_ANSWER_BYTES = 1 << 20
_TRIES = 20
_MISSING = Code.UNKNOWN_TOPIC_OR_PARTITION


class PartitionReader:
    """Fetch from one partition; follows its leader, repeats a fetch that got no answer."""

    def __init__(self, client: ClusterClient, partition: TopicPartition, *, read_committed: bool = False) -> None:
        self._client = client
        self._partition = partition
        self._read_committed = read_committed
        self._leader: LeaderAddress | None = None

    def _find_leader(self) -> LeaderAddress:
        metadata = self._client.metadata([self._partition.topic])
        code = metadata.topics[self._partition.topic].error_code
        if code and (code not in LEADER_MOVED or code == _MISSING):
            raise BrokerError(code, code_name(code), f"reading {self._partition}")
        leader = metadata.leader_address(self._partition)
        if leader is None:
            raise OutcomeUnknown(f"{self._partition} has no leader")
        return leader

    def fetch(self, offset: int, *, max_bytes: int = _ANSWER_BYTES, max_wait_ms: int = 0) -> FetchedPartition:
        """Fetch from `offset`; the answer begins with the batch that contains it, or with the next one.

        Raises:
            BrokerError: the broker refuses (OFFSET_OUT_OF_RANGE among others).
            UnreachableError: no leader answers.
        """
        error: OutcomeUnknown | UnreachableError | None = None
        attempt = 0
        while attempt < _TRIES:
            attempt += 1
            try:
                self._leader = node_id, host, port, topic_id = self._leader or self._find_leader()
                connection = self._client.connect(node_id, host, port)
                version = connection.version_for(API_KEY, LOWEST_VERSION, HIGHEST_VERSION, "Fetch")
                session = FetchSession(self._client.config.client_id, version, incremental=False)
                key = FetchKey(topic_id, self._partition.partition, self._partition.topic)
                session.want(key, FetchPosition(offset, None, None, max_bytes))
                connection.wait_for_throttle()
                correlation_id = connection.next_correlation_id()
                request = session.request(
                    correlation_id, max_wait_ms=max_wait_ms, max_bytes=max_bytes, read_committed=self._read_committed
                )
                timeout = self._client.config.request_timeout_ms / 1000
                frame = connection.exchange_frame([request], correlation_id, timeout)
                answer = session.answer(frame)
                connection.note_throttle(answer.throttle_time_ms)
            except (OutcomeUnknown, UnreachableError) as failure:
                error, self._leader = failure, None
                self._client.pause(attempt)
                continue
            if answer.throttle_time_ms and not answer.partitions:
                attempt -= 1  # a consumer quota: the broker only says how long to wait
                continue
            part = next((part for part in answer.partitions if part.key == key), None)
            code = answer.error_code or (part.error_code if part else Code.UNKNOWN_SERVER_ERROR)
            if part and not code:
                return part
            if code not in LEADER_MOVED or code == _MISSING:
                raise BrokerError(code, code_name(code), f"reading {self._partition} at offset {offset}")
            error, self._leader = OutcomeUnknown(f"{self._partition} moved"), None
            self._client.pause(attempt)
        raise UnreachableError(str(error), "check that the partition's leader is up")


def read_batch_at(client: ClusterClient, partition: TopicPartition, offset: int) -> memoryview | None:
    """Return the stored batch that contains `offset` (bytes from its header on), or None when there is none.

    Raises:
        BrokerError: the broker refuses for another reason than the offset.
        UnreachableError: no leader answers.
    """
    try:
        records = PartitionReader(client, partition).fetch(offset).records
    except BrokerError as error:
        if error.code == Code.OFFSET_OUT_OF_RANGE:
            return None
        raise
    for header in batch_headers(records):
        if header.base_offset <= offset < header.next_offset:
            return records[header.position : header.position + header.size_in_bytes]
    return None


def read_batches(
    client: ClusterClient, partition: TopicPartition, start: int, end: int
) -> Iterator[tuple[memoryview, int]]:
    """Yield whole batches from offset `start` to `end` as they are fetched, each piece with the offset after it.

    The last piece may contain batches after `end`.
    """
    reader = PartitionReader(client, partition)
    offset = start
    while offset < end:
        records = reader.fetch(offset, max_wait_ms=500).records
        headers = list(batch_headers(records))
        if not headers or headers[-1].next_offset <= offset:
            return
        offset = headers[-1].next_offset
        yield records[: headers[-1].position + headers[-1].size_in_bytes], offset
