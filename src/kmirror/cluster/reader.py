"""Read stored batches from one partition's leader, one blocking Fetch at a time; over a long path also ahead.

Every read says what it proves (`read_up_to`). Whoever needs all of a range uses `read_on` or `batches`: where a log is
silent they ask again with growing pauses, and raise if it stays silent. Nothing here returns less than was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import Connection, UnsupportedVersionError
from kmirror.cluster.log_ahead import LogAhead
from kmirror.cluster.protocol import list_offsets
from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.fetch import FetchedAlone, FetchedPartition, FetchTarget
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP
from kmirror.cluster.protocol.read_up_to import (
    FIRST_SILENT_PAUSE,
    LONGEST_SILENT_PAUSE,
    AtEnd,
    Batches,
    EmptyAnswer,
    LocalStart,
    NoBatches,
    ReadUpTo,
    Silence,
    batches_of,
    is_kept_elsewhere,
    local_start_by_settings,
    silent_text,
    useless_part,
    why_unproven,
)
from kmirror.cluster.protocol.wire import Exchange
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, TimedOutError, UnreachableError

_ANSWER_BYTES = 1 << 20
#: Before reading ahead, one answer shows how large batches are: it need not be large.
_FIRST_BYTES = 128 << 10
_WAIT_MS = 500
_TRIES = 20
_MISSING = Code.UNKNOWN_TOPIC_OR_PARTITION
#: How long other logs are asked again once one has stayed silent.
_SHORT_PATIENCE_S = 1.0
#: How long a broker may wait for its remote storage, where it lets the client decide (Kafka 3.6).
_REMOTE_WAIT_MS = 10_000
SILENT_HINT = (
    "look at the broker's remote storage, its quota for remote reads "
    "(remote.log.manager.fetch.max.bytes.per.second) and remote.fetch.max.wait.ms, then try again"
)


class SilentLogError(TimedOutError):
    """A log goes on, but its broker returns no records from an offset on: what is there is unknown."""

    def __init__(self, partition: TopicPartition, offset: int, until: int, why: str) -> None:
        super().__init__(silent_text(partition, offset, until, why), SILENT_HINT)
        self.args = (partition, offset, until, why)
        self.partition = partition
        self.offset = offset


class PartitionReader:
    """Read from one partition; follows its leader, repeats a fetch that got no answer, unless `leader` is given.

    A log that is silent for `patience_s` seconds (request.timeout.ms by default) is given up. A client that has waited
    so long for one log waits only a moment for others.
    """

    def __init__(
        self,
        client: ClusterClient,
        partition: TopicPartition,
        *,
        read_committed: bool = False,
        patience_s: float | None = None,
        leader: LeaderAddress | None = None,
    ) -> None:
        self._client = client
        self._partition = partition
        self._read_committed = read_committed
        self._wanted_patience_s = patience_s
        self._leader = leader
        self._tries = _TRIES if leader is None else 1
        #: The leader's connection at the last read.
        self._connection: Connection | None = None
        #: How far to read ahead; None if only what is asked for is read.
        self._ahead_until: int | None = None
        self._ahead: LogAhead | None = None
        self._ahead_again_at = 0.0

    @property
    def leader(self) -> LeaderAddress | None:
        """The leader that was last read from; None if it is to be found again."""
        return self._leader

    def read_ahead(self, until: int) -> None:
        """Let `read_on` read ahead up to offset `until` from now on if the path is long; `close` ends that.

        The process reads ahead over a limited number of connections, besides the client's own.
        """
        self._ahead_until = until

    def close(self) -> None:
        """End reading ahead."""
        self._ahead_until = None
        if self._ahead is not None:
            self._ahead.close()

    @property
    def _patience_s(self) -> float:
        return usual_patience_s(self._client) if self._wanted_patience_s is None else self._wanted_patience_s

    def read(self, offset: int, *, max_bytes: int = _ANSWER_BYTES, max_wait_ms: int = 0) -> ReadUpTo:
        """Read once from `offset`, and find out what an answer without a batch proves.

        Raises:
            BrokerError: the broker refuses (OFFSET_OUT_OF_RANGE among others).
            UnreachableError: no leader answers.
            CorruptBatchError: the first batch has an impossible length.
        """
        connection, leader, part, is_throttled = self._fetch(offset, max_bytes, max_wait_ms)
        found = batches_of(part, offset)
        if found is not None:
            return found
        end = part.last_stable_offset if self._read_committed else part.high_watermark
        if problem := useless_part(part, offset):
            return Silence(offset, offset if end is None else end, problem, problem)
        if end is None:
            return Silence(offset, offset, "the broker does not say where the log ends")
        if end <= offset:
            return AtEnd(offset, end)
        answer = EmptyAnswer(part, is_alone=True, is_throttled=is_throttled, leader_epoch=leader.known_epoch)
        why = why_unproven(offset, answer, self._local_start(connection, leader))
        return NoBatches(offset, end) if why is None else Silence(offset, end, why)

    def read_on(
        self, offset: int, *, max_bytes: int = _ANSWER_BYTES, max_wait_ms: int = 0
    ) -> Batches | NoBatches | AtEnd:
        """Read from `offset`; where the log is silent or its store fails, ask again with growing pauses.

        Raises:
            SilentLogError: it stayed silent for the whole patience.
            TimedOutError: its store failed for the whole patience.
            BrokerError, UnreachableError, CorruptBatchError: as `read`.
        """
        if (found_ahead := self._take_ahead(offset)) is not None:
            return found_ahead
        deadline, pause = time.monotonic() + self._patience_s, FIRST_SILENT_PAUSE
        failure: TimedOutError
        while True:
            try:
                found = self.read(offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
            except BrokerError as error:
                if error.code != Code.UNKNOWN_SERVER_ERROR:
                    raise
                # what brokers answer when their remote storage fails
                failure = TimedOutError(error.message, SILENT_HINT)
            else:
                if not isinstance(found, Silence):
                    self._begin_ahead(found)
                    return found
                failure = SilentLogError(self._partition, offset, found.until, found.why)
            if time.monotonic() + pause > deadline:
                self._client.has_silent_logs = True
                raise failure
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SILENT_PAUSE)
            max_wait_ms = _REMOTE_WAIT_MS

    def read_known(self, offset: int, *, max_bytes: int = _ANSWER_BYTES, max_wait_ms: int = 0) -> Batches | NoBatches:
        """Read from an offset below the log end, and wait until readers are shown what is there.

        Raises:
            SilentLogError: they are not shown it within the patience.
            BrokerError, UnreachableError, CorruptBatchError: as `read`.
        """
        deadline = time.monotonic() + self._patience_s
        while isinstance(found := self.read_on(offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms), AtEnd):
            if time.monotonic() + FIRST_SILENT_PAUSE > deadline:
                why = f"readers see it only up to {found.end} yet; are all its replicas in sync?"
                raise SilentLogError(self._partition, offset, offset + 1, why)
            time.sleep(FIRST_SILENT_PAUSE)
        return found

    def batches(self, start: int, end: int) -> Iterator[Batches]:
        """Yield the batches from offset `start` to `end` as they are read; the last ones may be after `end`.

        Raises:
            SilentLogError: what the log has below `end` is not shown.
            BrokerError, UnreachableError, CorruptBatchError: as `read`.
        """
        offset = start
        try:
            while offset < end:
                found = self.read_known(offset, max_wait_ms=_WAIT_MS)
                if isinstance(found, Batches):
                    offset = found.next_offset
                    yield found
                    # many want no more than the first ones
                    self.read_ahead(end)
                else:
                    offset = found.until
        finally:
            self.close()

    def _take_ahead(self, offset: int) -> Batches | None:
        """Return what was read ahead from `offset` on; without it, end reading ahead."""
        if self._ahead is None:
            return None
        found = self._ahead.take(offset)
        if found is None:
            self._ahead.close()
            self._ahead_again_at = self._ahead.again_at
            self._ahead = None
        return found

    @property
    def _will_read_ahead(self) -> bool:
        return self._ahead_until is not None and time.monotonic() >= self._ahead_again_at

    @property
    def _is_far(self) -> bool:
        return self._connection is not None and self._connection.round_trip >= LONG_ROUND_TRIP

    def _begin_ahead(self, found: Batches | NoBatches | AtEnd) -> None:
        """Read ahead after what was just read, up to where readers see something."""
        if not isinstance(found, Batches) or not self._will_read_ahead or not self._is_far:
            return
        leader, connection, until = self._leader, self._connection, self._ahead_until
        shown_end = found.last_stable_offset if self._read_committed else found.high_watermark
        if leader is None or connection is None or until is None or shown_end is None:
            return
        target = FetchTarget(leader, self._partition, self._read_committed)
        self._ahead = LogAhead(self._client.spare_connections, target, connection.round_trip)
        self._ahead.begin(found, min(until, shown_end))

    def _find_leader(self) -> LeaderAddress:
        metadata = self._client.metadata([self._partition.topic])
        code = metadata.topics[self._partition.topic].error_code
        if code and (code not in LEADER_MOVED or code == _MISSING):
            raise BrokerError(code, code_name(code), f"reading {self._partition}")
        leader = metadata.leader_address(self._partition)
        if leader is None:
            raise OutcomeUnknown(f"{self._partition} has no leader")
        return leader

    def _fetch(
        self, offset: int, max_bytes: int, max_wait_ms: int
    ) -> tuple[Connection, LeaderAddress, FetchedPartition, bool]:
        """Fetch this partition alone; return its answer, from where it came, and whether it was throttled."""
        error: OutcomeUnknown | UnreachableError | None = None
        attempt = 0
        while attempt < self._tries:
            attempt += 1
            try:
                self._leader = leader = self._leader or self._find_leader()
                self._connection = connection = self._client.connect(leader.node_id, leader.host, leader.port)
                if self._will_read_ahead and self._is_far:
                    max_bytes = min(max_bytes, _FIRST_BYTES)
                target = FetchTarget(leader, self._partition, self._read_committed)
                asked = target.exchange(offset, max_bytes, max_wait_ms)
                answer: FetchedAlone = fetched(connection, asked, max_wait_ms)
            except (OutcomeUnknown, UnreachableError) as failure:
                error, self._leader = failure, None
                self._client.pause(attempt)
                continue
            if answer.throttle_time_ms and answer.part is None:
                attempt -= 1  # a consumer quota: the broker only says how long to wait
                continue
            if answer.part and not answer.error_code:
                return connection, leader, answer.part, answer.throttle_time_ms > 0
            code = answer.error_code or Code.UNKNOWN_SERVER_ERROR
            if code not in LEADER_MOVED or code == _MISSING:
                raise BrokerError(code, code_name(code), f"reading {self._partition} at offset {offset}")
            error, self._leader = OutcomeUnknown(f"{self._partition} moved"), None
            self._client.pause(attempt)
        raise UnreachableError(str(error), "check that the partition's leader is up")

    def _local_start(self, connection: Connection, leader: LeaderAddress) -> LocalStart:
        """Find out from which offset on the leader reads the partition from its own disk."""
        epoch = leader.known_epoch
        wanted = {self._partition: (epoch, list_offsets.EARLIEST_LOCAL)}
        timeout_ms = self._client.config.request_timeout_ms
        code, start = int(Code.NONE), None
        try:
            settings = topic_settings(self._client, [self._partition.topic]).get(self._partition.topic, _MISSING)
            with suppress(UnsupportedVersionError):
                answer = connection.request(list_offsets.exchange(wanted, list_offsets.CONSUMER, 0, timeout_ms))
                found = answer.get(self._partition)
                code, start = (found.error_code, found.offset) if found else (Code.UNKNOWN_SERVER_ERROR, None)
        except (KmirrorError, OutcomeUnknown) as error:
            return LocalStart(None, None, f"where its local log starts is unknown: {error}")
        if not code and isinstance(settings, int):
            code = settings if start is None else code
        elif not code and not isinstance(settings, int):
            # a broker before KIP-405 does not tell where a local log starts
            start = local_start_by_settings(settings) if start is None else start
            start = None if is_kept_elsewhere(settings) else start
        if code:
            return LocalStart(None, None, f"where its local log starts is unknown: {code_name(code)} ({code})")
        return LocalStart(start, epoch, "its records may be in remote storage", connection.is_throttled)


def fetched(connection: Connection, asked: Exchange, max_wait_ms: int = 0) -> Any:
    """Send a fetch as soon as the broker does not throttle us; it may wait for more to come.

    Raises:
        OutcomeUnknown: it does not respond.
    """
    connection.wait_for_throttle()
    return connection.request(asked, timeout=(connection.config.request_timeout_ms + max_wait_ms) / 1000)


def usual_patience_s(client: ClusterClient) -> float:
    """Return how long to ask a silent log again, in seconds."""
    return _SHORT_PATIENCE_S if client.has_silent_logs else client.config.request_timeout_ms / 1000


def read_batch_at(client: ClusterClient, partition: TopicPartition, offset: int) -> memoryview | None:
    """Return the stored batch that contains `offset` (bytes from its header on), or None when there is none.

    Raises:
        BrokerError: the broker refuses for another reason than the offset.
        UnreachableError: no leader answers.
        SilentLogError: what is at that offset is unknown.
    """
    try:
        found = PartitionReader(client, partition).read_on(offset)
    except BrokerError as error:
        if error.code == Code.OFFSET_OUT_OF_RANGE:
            return None
        raise
    if not isinstance(found, Batches):
        return None
    header = found.headers[0]
    if header.base_offset > offset:
        return None
    return found.data[header.position : header.position + header.size_in_bytes]
