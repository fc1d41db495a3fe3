"""`__kmirror_state`, read and written for all lanes of a process: by one thread each, however many lanes there are.

Nearly all records are of other lanes than a given one: if each read them itself, the work would grow with the square of
their number. And reports that are due at the same time are stored by one request.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.clock import now
from kmirror.engine.threads import guarded_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown

STATE_PARTITION = TopicPartition("__kmirror_state", 0)
_POLL_MS = 500
#: Heartbeats and progress are written about once a second each: the last claim is among this many records.
_LOOK_BACK = 200
#: Engines and lanes write each second or two: a log that does not grow for longer may be that of a former leader.
_QUIET_SECONDS = 3.0
_PAUSE = 0.2
#: So many records at once are mostly of other mirrors, which write hundreds a second: then they are read less often.
_MANY_RECORDS, _MANY_PAUSE = 10, 0.2
#: Kinds of which the last record of each key is kept, for lanes that start later.
_KEPT = (b'["engine",', b'["change",', b'["progress",')
#: Brokers reject a timestamp far ahead of their clock (an hour since 4.0), but never this one (KIP-32).
_NO_TIMESTAMP = -1
#: By default brokers accept batches of up to 1 MB.
_BATCH_BYTES = 256 << 10
_LONGEST_WAIT_S = 1.0
#: A record that was refused is large, and is refused again until somebody changes the topic.
_REFUSED_PAUSE = 5.0
#: Errors about what is appended, not about where or when.
_REFUSED_CONTENT = {Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE, Code.INVALID_RECORD}

_logger = logging.getLogger(__name__)


class ClaimReader(Protocol):
    """What is passed records; called by the thread that reads, or the one that calls `Claims.follow`."""

    @property
    def keys(self) -> Collection[bytes]:
        """The keys of the records that it is passed; one that ends with a comma is what keys begin with."""

    def take_claims(self, records: Sequence[Record], sent_at: float, *, reached_end: bool) -> None:
        """Take records; `sent_at`: when they were asked for. `reached_end`: there were no others then."""

    def take_silence(self) -> None:
        """Note that nothing could be read."""

    def broken(self, error: Exception) -> None:
        """Take an unexpected error, after which nothing is passed any more."""


class Claims:
    """Follow the state of one destination while there are readers."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._readers: tuple[ClaimReader, ...] = ()
        #: By key, what is read by which reader.
        self._by_key: dict[bytes, list[ClaimReader]] = {}
        self._last: dict[bytes, Record] = {}
        #: When the last answer that reached the end was asked for.
        self._read_at: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tail: PartitionFollower | None = None

    def follow(self, reader: ClaimReader) -> Callable[[], None]:
        """Pass a reader what it wants: what was read last, then what comes, until the returned function is called."""
        with self._lock:
            self._readers += (reader,)
            for key in reader.keys:
                self._by_key.setdefault(key, []).append(reader)
            if self._thread is None:
                self._last.clear()
                self._read_at, self._stop = None, threading.Event()
                self._thread = guarded_thread(partial(self._run, self._stop), "kmirror-control", self._broken)
                self._thread.start()
            elif self._read_at is not None:
                known = [record for key, record in self._last.items() if key in reader.keys]
                reader.take_claims(known, self._read_at, reached_end=True)
        return lambda: self._leave(reader)

    def _leave(self, reader: ClaimReader) -> None:
        with self._lock:
            self._readers = tuple(one for one in self._readers if one is not reader)
            for key in reader.keys:
                self._by_key[key] = [one for one in self._by_key.get(key, ()) if one is not reader]
                if not self._by_key[key]:
                    del self._by_key[key]
            if not self._readers:
                self._stop.set()
                self._thread = None

    def _broken(self, error: Exception) -> None:
        with self._lock:
            self._thread, readers = None, self._readers
        for reader in readers:
            reader.broken(error)

    def _run(self, stop: threading.Event) -> None:
        with ClusterClient(self._config) as client:
            tail = self._tail = PartitionFollower(client, STATE_PARTITION, look_back=_LOOK_BACK)
            with closing(tail):
                is_first, grown_at = True, now()
                while not stop.is_set():
                    sent_at = now()
                    try:
                        answer = tail.poll(0 if is_first else _POLL_MS)
                    except (KmirrorError, OutcomeUnknown):
                        self._each(lambda reader: reader.take_silence())
                        stop.wait(_PAUSE)
                        continue
                    grown_at = sent_at if answer.records else grown_at
                    is_current = sent_at - grown_at < _QUIET_SECONDS or tail.is_certain(_QUIET_SECONDS)
                    self._take(answer.records, sent_at, answer.reached_end and is_current, stop)
                    if answer.reached_end and len(answer.records) >= _MANY_RECORDS and not is_first:
                        stop.wait(_MANY_PAUSE)
                    is_first = is_first and not answer.reached_end

    def _take(self, records: Sequence[Record], sent_at: float, reached_end: bool, stop: threading.Event) -> None:
        with self._lock:
            if stop.is_set():
                return  # another thread may read already, and have passed on what follows these records
            found: dict[int, list[Record]] = {}
            for record in records:
                if record.key is None:
                    continue
                if record.key.startswith(_KEPT):
                    self._last.pop(record.key, None)
                    self._last[record.key] = record
                    wanted = record.key
                else:
                    wanted = record.key.rpartition(b",")[0] + b","
                for reader in self._by_key.get(wanted, ()):
                    found.setdefault(id(reader), []).append(record)
            if reached_end:
                self._read_at = sent_at
            self._each(lambda reader: reader.take_claims(found.get(id(reader), ()), sent_at, reached_end=reached_end))

    def _each(self, call: Callable[[ClaimReader], None]) -> None:
        """Call something of each reader; one that fails ends alone."""
        for reader in self._readers:
            try:
                call(reader)
            except Exception as error:
                reader.broken(error)


class Reporter(Protocol):
    """What has reports to store; called by the thread that stores them."""

    def due_at(self) -> float:
        """Return when its next report is due."""

    def prepare(self) -> Sequence[tuple[bytes, bytes]]:
        """Return the keys and values to store now, if any."""

    def stored(self, *, is_known: bool) -> None:
        """Take whether all of them are known to be stored."""

    def broken(self, error: Exception) -> None:
        """Take an unexpected error, after which it is not called any more."""


@dataclass(slots=True, eq=False)
class _Reporting:
    reporter: Reporter
    #: Set when nothing more of it is stored.
    left: threading.Event
    is_leaving: bool = False
    #: Why a record was refused, the last time that was logged; and when to try again.
    refused_code: int | None = None
    again_at: float = 0.0

    @property
    def due_at(self) -> float:
        return max(self.reporter.due_at(), self.again_at)


class ReportLog:
    """Store the reports of lanes at one destination while there are any."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._reporting: tuple[_Reporting, ...] = ()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, reporter: Reporter) -> Callable[[], threading.Event]:
        """Store what it reports, until the returned function is called: its event is set once nothing more is stored.

        By then `due_at` and `prepare` are called once more.
        """
        one = _Reporting(reporter, threading.Event())
        with self._lock:
            self._reporting += (one,)
            if self._thread is None:
                self._thread = guarded_thread(self._run, "kmirror-progress", self._broken)
                self._thread.start()
        self.wake()
        return lambda: self._leave(one)

    def wake(self) -> None:
        """Have `due_at` called soon; from any thread."""
        self._wake.set()

    def _leave(self, one: _Reporting) -> threading.Event:
        one.is_leaving = True
        self.wake()
        return one.left

    def _broken(self, error: Exception) -> None:
        with self._lock:
            self._thread, reporting, self._reporting = None, self._reporting, ()
        for one in reporting:
            one.reporter.broken(error)
            one.left.set()

    def _run(self) -> None:
        with ClusterClient(self._config) as client:
            while True:
                self._store(client)
                with self._lock:
                    if not self._reporting:
                        self._thread = None
                        return
                left = min((one.due_at for one in self._reporting), default=0.0) - now()
                self._wake.wait(min(max(left, 0.0), _LONGEST_WAIT_S))
                self._wake.clear()

    def _store(self, client: ClusterClient) -> None:
        """Store what is due, and let go of those that leave."""
        at, due = now(), list[tuple[_Reporting, Sequence[tuple[bytes, bytes]]]]()
        leaving = [one for one in self._reporting if one.is_leaving]
        for one in self._reporting:
            if one in leaving or one.due_at <= at:
                try:
                    if records := one.reporter.prepare():
                        due.append((one, records))
                except Exception as error:
                    leaving.append(one)
                    one.reporter.broken(error)
        lost = _append(client, [(one, record) for one, records in due for record in records])
        for one, _ in due:
            one.reporter.stored(is_known=one not in lost)
        with self._lock:
            self._reporting = tuple(one for one in self._reporting if one not in leaving)
        for one in leaving:
            one.left.set()


class StateLog:
    """The state of one destination, for all lanes of a process that copy to it."""

    def __init__(self, config: ClientConfig) -> None:
        self.claims = Claims(config)
        self.reports = ReportLog(config)
        #: How long a request may take.
        self.request_seconds = config.request_timeout_ms / 1000


#: One record, and whose it is.
_Reported = tuple[_Reporting, tuple[bytes, bytes]]


def _append(client: ClusterClient, reported: Iterable[_Reported]) -> set[_Reporting]:
    """Append records in their order; return whose records are not all known to be stored.

    What follows a record that is refused is appended if it is of others: a report refers to what was stored before it.
    """
    left, lost = _by_size(reported), set[_Reporting]()
    while left:
        some = [one for one in left.popleft() if one[0] not in lost]
        # a fifth of the bytes: whoever reads the state from afar waits for them
        batch = [Record(offset, _NO_TIMESTAMP, *record) for offset, (_, record) in enumerate(some)]
        try:
            if batch:
                append_to(client, STATE_PARTITION, memoryview(make_batch(batch, compression_type="gzip")))
        except (KmirrorError, OutcomeUnknown) as error:
            if not isinstance(error, BrokerError) or error.code not in _REFUSED_CONTENT:
                return lost.union(one for group in (some, *left) for one, _ in group)
            if len(some) > 1:
                half = len(some) // 2
                left.extendleft((some[half:], some[:half]))
                continue
            ((one, (key, value)),) = some
            lost.add(one)
            one.again_at = now() + _REFUSED_PAUSE
            if one.refused_code != error.code:
                one.refused_code = error.code
                _logger.warning("the record %s of %d bytes is not stored: %s", key.decode(), len(value), error)
    return lost


def _by_size(reported: Iterable[_Reported]) -> deque[list[_Reported]]:
    """Group records into batches that brokers accept."""
    groups: deque[list[_Reported]] = deque()
    size = 0
    for one, record in reported:
        if not groups or size + len(record[1]) > _BATCH_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((one, record))
        size += len(record[1])
    return groups


def append_to(client: ClusterClient, partition: TopicPartition, batch: memoryview) -> int:
    """Append one batch without sequence numbers and return its base offset.

    Raises:
        BrokerError: refused.
        OutcomeUnknown: sent, not answered.
    """
    leader = client.metadata([partition.topic]).leader_address(partition)
    if leader is None:
        raise OutcomeUnknown(f"{partition} has no leader")
    connection = client.connect(leader.node_id, leader.host, leader.port)
    append = produce.Append(partition.topic, leader.topic_id, partition.partition, batch)
    answers = connection.request(produce.exchange([append], client.config.request_timeout_ms))
    answer: produce.AppendAnswer | None = answers.get(partition)
    if answer is None:
        raise OutcomeUnknown(f"{connection.address} responded for different partitions")
    if answer.error_code:
        raise BrokerError(answer.error_code, code_name(answer.error_code), f"appending to {partition}")
    return answer.base_offset
