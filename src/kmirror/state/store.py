"""Reads `__kmirror_state` and `__kmirror_events`, and creates them on first use.

A read goes up to the high watermark at its start, not to the last stable offset: a transaction whose commit was
acknowledged may still lack its marker, and one left open by a dead process hides everything after it. So
`read_complete` waits until every transaction before its start has ended (brokers abort an abandoned one after
`transaction.timeout.ms`, checked every 10 s); `read` waits for that as long as its caller wants to.

A store keeps what it has read and fetches only newer records. What is missing is never taken for nothing: a log that
does not begin at 0, or that is empty although there are events, has lost records, and its reader is told so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, OffsetAnswer
from kmirror.cluster.committed import CommittedReader, Look, committed_records
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.security.renewed_logins import RENEWED
from kmirror.cluster.topics.leaders import NoLeaderError, require_leaders
from kmirror.cluster.topics.policies import create_settled
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.state.event_records import Event, EventPage, decode_event
from kmirror.state.internal_topics import (
    EVENTS_TOPIC,
    EVENTS_TOPIC_SETTINGS,
    STATE_TOPIC,
    STATE_TOPIC_SETTINGS,
    StoredValues,
    all_lost,
    beginning_lost,
    hidden_note,
    lacking_grant,
    losing_policy,
    needs_one_partition,
    unfinished,
)
from kmirror.state.record_kinds import Removed, Unknown, decode
from kmirror.state.snapshot import Report, State
from kmirror.state.waiting import BRIEFLY_S, STEP_S, Deadline, boottime, refused, slow_hint, unreachable

DEFAULT_TIMEOUT_S = 30.0
#: Brokers delete tombstones after delete.retention.ms (a day by default): older content is read again.
FORGET_AFTER_S = 3600.0
#: How long the log end may be below what was read before that counts as lost.
_ASSUMED_LOST_S = 60.0
#: How long the first transaction may have written events and no state yet.
_FIRST_WRITE_S = 1.0
#: How long the leader may wait for what comes next.
_AT_LEADER_S = 0.2
#: How the keys of lanes' reports and of their pages begin.
_REPORTS = (b'["progress",', b'["rows",')
#: How long brokers that do not answer are waited for where the others know no topic: a cluster drops dead ones by then.
_DROPPED_S = 10.0
_LEAST_S = 0.2  # for a request that is sent before the deadline

Answer = TypeVar("Answer")

_logger = logging.getLogger(__name__)


class _Blocked(Exception):  # noqa: N818 - not a failure: what is committed has been read
    """An open transaction ends the readable part before the target."""


class StateStore:
    """Read the state stored on a destination cluster; safe to share between threads, unless it is given a `client`."""

    def __init__(
        self, config: ClientConfig, client: ClusterClient | None = None, known: ClusterMetadata | None = None
    ) -> None:
        #: Set at the first answer of any broker: after it, brokers that do not answer may be restarting.
        self.has_answered = False
        self._lock = threading.RLock()
        self._client = client or ClusterClient(config)
        #: The internal topics and their leaders, as whoever opened the client found them.
        self.found = known
        #: By mirror: locks that the command keeps between its transactions (`state.lock`).
        self.kept: dict[str, Any] = {}
        #: What came with the end of a topic, until it is used.
        self._looks: dict[str, Look] = {}
        self._raw = StoredValues()
        self._decoded: dict[bytes, Any] = {}
        #: False to leave reports of lanes as they were decoded last, and the keys of what was read of them since.
        self.wants_reports, self._not_decoded = True, set[bytes]()
        self._position = 0
        #: The id of the topic that was read; None before the first read.
        self._topic_id: str | None = None
        #: The offset of the open transaction that hid something from the last `read`.
        self.hidden_from: int | None = None
        #: The offset of the last one that a `read` met, and when that began: it is not waited for again.
        self._blocked = -1, 0.0
        #: Since when the log end is below what was already read.
        self._hidden_since: float | None = None
        self._read_at, self._state = boottime(), State()
        #: The topics that exist. Leaders that were just asked for are not looked up first.
        self._seen = set(_counts(known))
        self._logs = {topic: CommittedReader(self._client, TopicPartition(topic, 0), known) for topic in self._seen}
        self._shape_checked = False

    @property
    def login(self) -> ClientConfig:
        """The connection settings of the destination with current passwords and certificates."""
        return RENEWED.current(self._client.config).with_current_stores()

    @property
    def client_config(self) -> ClientConfig:
        """The connection settings of the destination."""
        return self._client.config

    def no_answer(self, what: str) -> UnreachableError:
        """Return the error for a missing answer."""
        return unreachable(what, hint=slow_hint(self.login) if self.has_answered else None)

    def grant(self, code: int) -> str:
        """Return the command that grants the missing right after kmirror's own topic or id was refused with `code`."""
        return lacking_grant(code).line(self._client.config)

    def read(self, timeout: float = DEFAULT_TIMEOUT_S, patience: float = BRIEFLY_S) -> State:
        """Return the committed state, without what transactions that stay open for `patience` seconds may hide.

        Then `hidden_from` is set. The State is empty if kmirror has never written here. Raises UnreachableError.
        """
        with self._lock:
            self.hidden_from, deadline, began = None, Deadline(timeout), boottime()
            while True:
                known, since = self._blocked
                left = patience - (boottime() - since if known == self._position else 0.0)
                try:
                    return self._read(deadline, Deadline(min(left, deadline.remaining)))
                except _Blocked:
                    if known == self._position or deadline.passed:
                        break
                    self._blocked = self._position, began
            self.hidden_from = self._position
            _logger.info(hidden_note(self._position))
            return self._state

    def read_complete(self, deadline: Deadline) -> State:
        """Return everything committed before this call; raise TimedOutError if an open transaction hides it."""
        with self._lock:
            try:
                return self._read(deadline, deadline)
            except _Blocked:
                raise unfinished(self._position, deadline.seconds) from None

    def read_certain(self, deadline: Deadline) -> State:
        """Return what `read_complete` does; raise TimedOutError also if another leader may have committed more."""
        with self._lock:
            for _ in range(2):
                state = self.read_complete(deadline)
                if not self._log(STATE_TOPIC).follow_newer(max(_LEAST_S, deadline.remaining)):
                    return state
            raise TimedOutError(f"{STATE_TOPIC} has just got another leader")

    def follow(self, found: ClusterMetadata) -> None:
        """Read the state from the leader that is named here from now on."""
        with self._lock:
            self._log(STATE_TOPIC).follow(found)

    def read_events(
        self, mirror: str | None = None, since_ms: int | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> tuple[Event, ...]:
        """Return the events of one mirror or of all since a time, oldest first. Raises UnreachableError."""
        return self.read_event_page(EventPage(()), mirror, since_ms, timeout).events

    def read_event_page(
        self,
        after: EventPage,
        mirror: str | None = None,
        since_ms: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> EventPage:
        """Return the events after another page. Raises UnreachableError."""
        with self._lock:
            deadline = Deadline(timeout)
            end, topic_id = self._end(EVENTS_TOPIC, deadline, after.next_offset or 0)
            if end is None:
                return EventPage(())
            # a newly elected leader may hide its last records; a recreated topic is read from its start
            position = after.next_offset if topic_id == after.topic_id else None
            if position is None:
                # the log is in write order, but the times are the writers': start an hour early, then filter
                early_ms = max(0, (since_ms or 0) - 3_600_000)
                start = self._offset(EVENTS_TOPIC, early_ms, deadline)[0].offset if early_ms else 0
                position = end if start is None else start
            found, patience = list[Event](), Deadline(min(BRIEFLY_S, timeout))
            try:
                for next_offset, message in self._messages(EVENTS_TOPIC, position, end, patience, deadline):
                    position = next_offset
                    if message is None:
                        continue
                    event = decode_event(message.key or b"", message.value or b"", message.timestamp)
                    if mirror in (None, event.mirror) and event.time_ms >= (since_ms or 0):
                        found.append(event)
            except _Blocked:
                return EventPage(tuple(found), position, topic_id, hidden_from=position)
            return EventPage(tuple(found), position, topic_id)

    def holds(self, topic: str, offset: int, deadline: Deadline) -> bool:
        """Return whether a committed record is at this offset; its transaction has ended. Raises UnreachableError."""
        with self._lock:
            try:
                messages = self._messages(topic, offset, offset + 1, deadline, deadline)
                return any(message is not None and message.offset == offset for _, message in messages)
            except _Blocked:
                raise self.no_answer(f"{topic} cannot be read at offset {offset}") from None

    def ensure_topics(self, replication_factor: int = -1, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Create missing internal topics; a `replication_factor` of -1 is the brokers' default.

        Raises UnreachableError, and RefusedError for an existing topic with partitions or settings that lose state.
        """
        with self._lock:
            if self._shape_checked:
                return
            deadline = Deadline(timeout)
            wanted = {STATE_TOPIC: STATE_TOPIC_SETTINGS, EVENTS_TOPIC: EVENTS_TOPIC_SETTINGS}
            if wanted.keys() - (known := _counts(self.found)).keys():
                what = "describing kmirror's topics"
                known = _counts(self._ask(lambda s: self._client.metadata(wanted, timeout=s), what, deadline))
            counts = {}
            for topic, settings in wanted.items():
                is_there = known.get(topic) or self._described(topic, deadline)
                if is_there or not self._create(topic, settings, replication_factor, deadline):
                    counts[topic] = known.get(topic) or self._partitions_of(topic, deadline)
            self._require_shapes(counts, deadline)
            self._shape_checked = True

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        with self._lock:
            for lock in self.kept.values():
                lock.close()
            self.kept.clear()
            self._client.close()

    def _read(self, deadline: Deadline, patience: Deadline) -> State:
        if boottime() - self._read_at > FORGET_AFTER_S:
            self._start_over()
        end, topic_id = self._end(STATE_TOPIC, deadline, self._position)
        while end is not None and end < self._position and topic_id == self._topic_id:
            # a newly elected leader hides its last records until it knows its followers' positions
            self._hidden_since = self._hidden_since or boottime()
            if boottime() - self._hidden_since > _ASSUMED_LOST_S:
                break
            if patience.passed:
                raise _Blocked
            time.sleep(STEP_S)
            end, topic_id = self._end(STATE_TOPIC, deadline, self._position)
        self._hidden_since = None
        if end is None or end < self._position or topic_id != self._topic_id:
            self._start_over()  # missing, recreated, or truncated by an unclean election
        if self._position == 0 and end:
            self._require_start(0, deadline)
        elif self._position == 0:
            self._require_never_written(deadline)
        self._topic_id = topic_id
        changed: set[bytes] = set()
        try:
            if end is not None and end > self._position:
                for position, message in self._messages(STATE_TOPIC, self._position, end, patience, deadline):
                    self._position = position
                    if message is not None and (key := message.key) is not None:
                        changed.add(key)
                        self._raw.take(key, message.value)
        except RefusedError:
            self._start_over()
            raise
        finally:
            self._decode(changed)
            self._read_at = boottime()
        if self._state.leader != (asked := self._log(STATE_TOPIC).asked):
            self._state = replace(self._state, leader=asked)
        return self._state

    def _require_never_written(self, deadline: Deadline) -> None:
        """Raise RefusedError if there are events, which are written with state, and still no state."""
        grace = Deadline(min(_FIRST_WRITE_S, deadline.remaining))
        while self._has_events(deadline) and not (end := self._end(STATE_TOPIC, deadline)[0]):
            if grace.passed:
                raise all_lost(is_missing=end is None)
            time.sleep(STEP_S)

    def _has_events(self, deadline: Deadline) -> bool:
        try:
            return bool(self._end(EVENTS_TOPIC, deadline)[0])
        except UnreachableError as error:
            if error.reason is Reason.NOT_AUTHORIZED:
                return False  # who reads the state need not see the events
            raise

    def _require_start(self, position: int, deadline: Deadline) -> None:
        look = self._looks.get(STATE_TOPIC)
        start = None if look is None or look.part is None else look.part.log_start_offset
        if start is None:
            start = self._offset(STATE_TOPIC, EARLIEST, deadline)[0].offset or 0
        if start > position:
            raise beginning_lost(start)

    def _decode(self, changed: set[bytes]) -> None:
        changed |= self._not_decoded
        self._not_decoded = set() if self.wants_reports else {key for key in changed if key.startswith(_REPORTS)}
        changed -= self._not_decoded
        if not changed:
            return
        reports: list[Report] = []
        for key in changed:
            value, before = self._raw.values.get(key), self._decoded.get(key)
            record = None if value is None else decode(key, value)
            if record is None or isinstance(record, Removed):
                self._decoded.pop(key, None)
            else:
                self._decoded[key] = record
            if isinstance(record, Report) and not isinstance(before, Unknown):
                reports.append(record)
        only_reports = len(reports) == len(changed)
        self._state = self._state.with_reports(reports) if only_reports else State.of(self._decoded.values())

    def _start_over(self) -> None:
        self._raw, self._decoded, self._position, self._state = StoredValues(), {}, 0, State()
        self._not_decoded, self._topic_id = set(), None

    def _messages(
        self, topic: str, start: int, end: int, transactions_deadline: Deadline, deadline: Deadline
    ) -> Iterator[tuple[int, Record | None]]:
        """Yield (next offset, committed record) from `start` up to `end`; the record is None after each batch.

        The last stable offset may be below `end`: raises _Blocked if it still is when `transactions_deadline` passes,
        and UnreachableError if the end is not reached by `deadline`.
        """
        look = self._looks.pop(topic, None)
        part = look.part if look is not None and look.offset == start else None
        position, at_stable_end = start, False
        while position < end:
            if part is not None:
                self.has_answered = True
                for next_offset, record in committed_records(part, position):
                    position = next_offset
                    yield position, record
                at_stable_end = part.last_stable_offset is not None and position >= part.last_stable_offset
            if position >= end:
                return
            if at_stable_end and transactions_deadline.passed:
                raise _Blocked
            if deadline.passed:
                raise self.no_answer(f"reading {topic}: not at its end within {deadline.seconds:g} s")
            part = self._fetch(topic, position, min(transactions_deadline.remaining or 1, deadline.remaining))
            if part is not None and part.error_code == Code.OFFSET_OUT_OF_RANGE:
                log_start = self._offset(topic, EARLIEST, deadline)[0].offset or 0
                if topic == STATE_TOPIC and log_start > position:
                    raise beginning_lost(log_start)
                if log_start <= position:
                    raise self.no_answer(f"reading {topic}: its end has moved back below {position}")
                part, position = None, log_start  # events may be deleted, state may not
            elif part is not None:
                self._require(part.error_code, f"reading {topic}")

    def _fetch(self, topic: str, position: int, seconds: float) -> FetchedPartition | None:
        """Fetch once; None if there is no useful answer, a moment later."""
        wait_ms = int(1000 * min(_AT_LEADER_S, seconds))
        try:
            part = self._log(topic).fetch(position, max(_LEAST_S, seconds), wait_ms)
        except UnreachableError as error:
            raise unreachable(f"reading {topic}: {error}", error.reason) from error
        if part is None or not (part.error_code or part.records):
            time.sleep(STEP_S)
        return part

    def _log(self, topic: str) -> CommittedReader:
        return self._logs.setdefault(topic, CommittedReader(self._client, TopicPartition(topic, 0)))

    def _end(self, topic: str, deadline: Deadline, position: int = 0) -> tuple[int | None, str | None]:
        # the high watermark, and the topic's id; None if there is no such topic. What follows `position` comes with it
        metadata = None
        if topic not in self._seen and (metadata := self._described(topic, deadline)) is None:
            return None, None
        look = self._log(topic).look(position, max(_LEAST_S, deadline.remaining), metadata)
        if look is not None:
            self.has_answered = True
            self._looks[topic] = look
            return look.end, look.topic_id
        answer, known = self._offset(topic, LATEST, deadline)
        # it may be another topic, and whoever answered may be an older leader than `known` names
        self._logs[topic] = CommittedReader(self._client, TopicPartition(topic, 0), known, answer.leader_epoch)
        return answer.offset, None if known is None else known.topics[topic].printed_topic_id

    def _offset(self, topic: str, timestamp: int, deadline: Deadline) -> tuple[OffsetAnswer, ClusterMetadata | None]:
        # and who leads it; that a broker does not know a topic that was seen does not mean that it is missing
        if topic not in self._seen and not self._described(topic, deadline):
            return OffsetAnswer(0, None, -1), None
        partition, what = TopicPartition(topic, 0), f"looking up the end of {topic}"

        def ask(seconds: float) -> tuple[OffsetAnswer, ClusterMetadata | None]:
            metadata = require_leaders(self._client, [topic], self._client.metadata([topic], timeout=seconds), seconds)
            described = metadata.topics.get(topic)
            if described and described.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION and self._topic_id is None:
                # nothing was read yet: it is missing, as for whoever comes now
                self._seen.discard(topic)
                return OffsetAnswer(0, None, -1), None
            found = self._client.list_offsets({partition: timestamp}, metadata=metadata, timeout=seconds)
            return found[partition], metadata

        answer, metadata = self._ask(ask, what, deadline)
        if answer.error_code in LEADER_MOVED:
            why = self._client.unanswered.get(partition) if answer.error_code == Code.BROKER_NOT_AVAILABLE else None
            raise unreachable(f"{what}: {why}" if why else f"{topic} has no leader: {code_name(answer.error_code)}")
        self._require(answer.error_code, what)
        return answer, metadata

    def _ask(self, request: Callable[[float], Answer], what: str, deadline: Deadline) -> Answer:
        """Send a request; retry while the brokers cannot be reached, if they were reached before."""
        attempt = -1
        while True:
            try:
                answer = request(max(_LEAST_S, deadline.remaining))
            except (UnreachableError, OutcomeUnknown) as error:
                reason = error.reason if isinstance(error, UnreachableError) else None
                hint = error.hint if isinstance(error, NoLeaderError) else None
                if reason is not None or not self.has_answered or deadline.passed:
                    raise unreachable(f"{what}: {error}", reason, hint) from error
                self._client.pause(attempt := attempt + 1)
            except BrokerError as error:
                self._require(error.code, what, error.detail)
                raise
            else:
                self.has_answered = True
                return answer

    def _require(self, code: int, what: str, detail: str | None = None) -> None:
        if code:
            raise refused(code, code_name(code), what, detail, self.grant(code))

    def _described(self, topic: str, deadline: Deadline) -> ClusterMetadata | None:
        # None if there is no such topic
        what, patience, attempt = f"describing topic {topic}", Deadline(min(_DROPPED_S, deadline.remaining)), 0
        while True:
            described = self._ask(lambda seconds: self._client.metadata([topic], timeout=seconds), what, deadline)
            found = described.topics.get(topic)
            if found is None or found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            if found.error_code != Code.BROKER_NOT_AVAILABLE:
                break
            if patience.passed:
                raise self.no_answer(f"not all brokers answer, and those that do have no topic {topic}")
            self._client.pause(attempt := attempt + 1)
        if found.error_code != Code.LEADER_NOT_AVAILABLE:
            self._require(found.error_code, what)
        self._seen.add(topic)
        return described

    def _create(self, topic: str, settings: Mapping[str, str], replication_factor: int, deadline: Deadline) -> bool:
        # False if another client was faster
        what = f"creating topic {topic}"
        try:
            self._ask(lambda _: create_settled(self._client, topic, 1, replication_factor, settings), what, deadline)
        except BrokerError as error:
            if error.code == Code.TOPIC_ALREADY_EXISTS:
                return False
            raise
        while not self._described(topic, deadline) and not deadline.passed:
            time.sleep(STEP_S)  # the brokers get it from the controller
        return True

    def _partitions_of(self, topic: str, deadline: Deadline) -> int:
        # brokers may not know a new topic yet, or none of its partitions
        while not (described := self._described(topic, deadline)) or not described.topics[topic].partitions:
            if deadline.passed:
                raise self.no_answer(f"the brokers report no partitions of {topic}")
            time.sleep(STEP_S)
        return len(described.topics[topic].partitions)

    def _require_shapes(self, counts: Mapping[str, int], deadline: Deadline) -> None:
        for topic, count in counts.items():
            # others that were added to it later do no harm
            if topic == STATE_TOPIC and count != 1 and not self._offset(topic, LATEST, deadline)[0].offset:
                raise needs_one_partition(topic, count)
        what, keys = f"reading the settings of topics {' and '.join(counts)}", ["cleanup.policy"]
        found = self._ask(lambda s: topic_settings(self._client, counts, keys, timeout=s), what, deadline)
        for topic in counts:
            if (settings := found[topic]) == Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise RefusedError(f"topic {topic} was deleted a moment ago", "if that is right, run the command again")
            if isinstance(settings, int):
                self._require(settings, f"reading the settings of topic {topic}")
            elif error := losing_policy(self._client.config, topic, settings):
                raise error


def _counts(found: ClusterMetadata | None) -> dict[str, int]:
    return {name: len(one.partitions) for name, one in found.topics.items() if not one.error_code} if found else {}
