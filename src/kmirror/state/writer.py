"""A transactional writer to the internal topics: opening it fences any process that used its transactional id before.

The transactional id is the lock. `open` makes the broker end the predecessor's transaction, committed or aborted, and
refuse all it sends afterwards. What is read then cannot change under this id any more, so a decision based on it still
holds when it is committed, or the commit is refused.

A commit that was not confirmed is in doubt: it may have been carried out, and the answer lost. The next `open` ends the
doubt: the record is then at its offset, or never will be.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.producers import describe_producers, transactions_of
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.topics.leaders import NoLeaderError
from kmirror.cluster.writing.transactional_writer import CommitInDoubtError, FencedError, TransactionalWriter
from kmirror.errors import (
    BrokerError,
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    settled,
)
from kmirror.state.event_records import Event, encode_event
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.record_kinds import encode, encode_key
from kmirror.state.records import EngineRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline, refused, slow_hint, unreachable

#: After this, brokers abort a dead writer's transaction, which hides what others write meanwhile.
_TRANSACTION_TIMEOUT_MS = 10_000
#: How long the outcome of a commit in doubt is looked up, even after the caller's deadline.
_SETTLE_S = 10.0
#: The least time for an attempt that begins before the deadline, so that being late does not look like an outage.
_ATTEMPT_S = 5.0
#: How long a transaction is waited for before it is asked whether its coordinator still knows it.
_FORGOTTEN_S = 2.0
#: Bounds of the random pause before a fenced writer tries again, doubled with each attempt.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

Decide = Callable[[State], Changes]

#: Called with the events of each transaction that this process has written, in the thread that wrote it: must not wait.
event_listeners: list[Callable[[Sequence[Event]], None]] = []

STATE_PARTITION = TopicPartition(STATE_TOPIC, 0)

_logger = logging.getLogger(__name__)


class NotConfirmed(Exception):  # noqa: N818 - not a failure: it may have happened
    """A transaction was not confirmed; `place` is (topic, offset) of one of its records, None if it was not written."""

    def __init__(self, place: tuple[str, int] | None, cause: str, events: tuple[Event, ...] = ()) -> None:
        super().__init__(place, cause, events)
        self.place = place
        self.cause = cause
        self.events = events


class StateWriter:
    """Write transactions under one transactional id; used by one thread at a time."""

    def __init__(self, store: StateStore, role: str, mirror: str) -> None:
        self.transactional_id = f"kmirror-{role}-{quote(mirror, safe='')}"
        self._store = store
        self._mirror = mirror
        self._writer: TransactionalWriter | None = None
        #: True once everything committed before it was open has been read.
        self.has_read = False
        #: The open writer's connections; those of the `_lender` if there is one.
        self.client: ClusterClient | None = None
        self._lender: StateWriter | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def open(self, deadline: Deadline, leaders: ClusterMetadata | None = None) -> None:
        """Take over the transactional id; raise UnreachableError if the brokers do not grant it in time.

        `leaders` are those of the internal topics, if they were just looked up.
        """
        self.close()
        # the lock that a command keeps has connections: over a distance, opening others takes ten round trips
        kept = self._store.kept.get(self._mirror)
        self._lender = kept.lender(self) if kept is not None else None
        self.client = (self._lender and self._lender.client) or ClusterClient(self._store.login)
        writer = TransactionalWriter(self.client, self.transactional_id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        try:
            writer.begin(
                [STATE_TOPIC, EVENTS_TOPIC],
                lambda: deadline.remaining,
                patiently=self._store.has_answered,
                leaders=self._lender.leaders if self._lender is not None else leaders,
            )
        except BaseException as error:
            self.close()
            if isinstance(error, KmirrorError) and not isinstance(error, NoLeaderError):
                raise self._known(error, f"taking the transactional id {self.transactional_id}") from error
            raise
        self._store.has_answered = True
        self._writer, self.has_read = writer, False

    @property
    def leaders(self) -> ClusterMetadata | None:
        """The leaders of the internal topics, as the open writer found them."""
        return None if self._writer is None else self._writer.leaders

    def read_complete(self, deadline: Deadline) -> State:
        """Return everything committed before this call, while the writer is open; raises as the store's.

        What a coordinator has forgotten to end, by this id or another of kmirror's, is ended first.
        """
        try:
            state = self._store.read_complete(Deadline(min(_FORGOTTEN_S, deadline.remaining / 2)))
        except UnreachableError:
            # a leader that has just died takes all of so short a time
            state = self._store.read_complete(deadline)
        except TimedOutError:
            try:
                self._end_forgotten(deadline)
            except KmirrorError as error:
                _logger.warning("a transaction that stays open was not ended: %s", error)
            state = self._store.read_complete(deadline)
        settled(self._writer, "the writer").decided_by(STATE_PARTITION, state.leader)
        self.has_read = True
        return state

    def _end_forgotten(self, deadline: Deadline) -> None:
        own, client = settled(self._writer, "the writer"), settled(self.client, "the writer's client")
        partitions = [TopicPartition(topic, 0) for topic in (STATE_TOPIC, EVENTS_TOPIC)]

        def still_open() -> set[tuple[int, int]]:
            known = describe_producers(client, partitions, timeout=min(_ATTEMPT_S, deadline.remaining))
            producers = [producer for answer in known.values() for producer in answer.producers]
            starts = [(producer.producer_id, producer.current_txn_start_offset) for producer in producers]
            return {(producer_id, start) for producer_id, start in starts if start is not None}

        if not (before := still_open()):
            return  # brokers asked for the transactions of no producer return all
        listed = transactions_of(
            client, {producer_id for producer_id, _ in before}, min(_ATTEMPT_S, deadline.remaining)
        )
        # what ended meanwhile is of a writer that is at work
        left = {producer_id for producer_id, _ in before & still_open()}
        for name, state in (listed[producer_id] for producer_id in left & listed.keys()):
            writer = own
            if name != self.transactional_id:
                if not name.startswith("kmirror-") or state not in {"CompleteCommit", "CompleteAbort"}:
                    continue
                writer = TransactionalWriter(client, name, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
                writer.begin([STATE_TOPIC], lambda: deadline.remaining, patiently=False)
            if writer.end_forgotten(partitions, lambda: deadline.remaining):
                _logger.warning("ended a transaction of %s that its coordinator had left open", name)

    def commit(self, changes: Changes, deadline: Deadline) -> None:
        """Write all of the changes or none. Raises NotConfirmed, or the error that prevented the write.

        After any error the writer is closed.
        """
        if self._writer is None:
            raise ValueError("open the writer first")
        records: dict[TopicPartition, list[tuple[bytes, bytes | None]]] = {
            STATE_PARTITION: [
                *(encode(record) for record in changes.records),
                *((encode_key(key), None) for key in changes.tombstones),
            ],
            TopicPartition(EVENTS_TOPIC, 0): [encode_event(event) for event in changes.events],
        }
        try:
            self._writer.commit({at: given for at, given in records.items() if given}, lambda: deadline.remaining)
        except BaseException as error:
            if isinstance(error, FencedError) and (leaders := self.leaders) is not None:
                self._store.follow(leaders)
            self.close()
            match error:
                case CommitInDoubtError():
                    raise NotConfirmed(error.place, error.cause, changes.events) from error
                case FencedError():
                    raise NotConfirmed(None, error.message) from error
                case NoLeaderError():
                    raise NoLeaderError(f"nothing was written: {error.message}", error.hint, error.reason) from error
                case KmirrorError():
                    raise self._known(error, f"writing to {STATE_TOPIC} and {EVENTS_TOPIC}") from error
            raise
        _announce(changes.events)

    def renewal(self, record: EngineRecord) -> memoryview | None:
        """Return a record as a batch to append outside of a transaction (`lone_batches`); None if it must be in one.

        Unless it is known to be stored, `not_renewed` must follow.
        """
        if self._writer is None or not self._writer.can_append_alone:
            return None
        return self._writer.batch_alone(STATE_PARTITION, *encode(record))

    def not_renewed(self, trouble: KmirrorError | OutcomeUnknown) -> None:
        """Close the writer: a renewal is stored by now, or before what is committed next, or never."""
        _logger.info("%s is to be taken again: %s", self.transactional_id, trouble)
        self.close()

    def close(self) -> None:
        """Close the connections; an unfinished transaction ends by the next `open` or the broker's time-out."""
        if self.client is not None and (self._lender is None or self._lender.client is not self.client):
            self.client.close()
        self.client = self._writer = self._lender = None

    def _known(self, error: KmirrorError, what: str) -> KmirrorError:
        if isinstance(error, BrokerError):
            detail = error.detail if error.what == what else f"{error.what}: {error.detail or error.name}"
            return refused(error.code, error.name, what, detail, self._store.grant(error.code))
        if isinstance(error, UnreachableError):
            hint = (error.hint or slow_hint(self._store.login)) if self._store.has_answered else None
            message = error.message if error.message.startswith(what) else f"{what}: {error.message}"
            return unreachable(message, error.reason, hint)
        return error


def was_written(store: StateStore, writer: StateWriter, doubt: NotConfirmed, deadline: Deadline) -> bool:
    """Reopen the writer if needed, and return whether the commit in doubt was written.

    Raises OutcomeUnknown when the brokers do not answer within the deadline or 10 s, whichever is longer.
    """
    if doubt.place is None:
        return False
    lookup_deadline = Deadline(max(deadline.remaining, _SETTLE_S))
    try:
        if not writer.is_open:
            writer.open(lookup_deadline)
        was_stored = store.holds(*doubt.place, lookup_deadline)
    except KmirrorError as error:
        raise OutcomeUnknown(f"a change of {STATE_TOPIC} was not confirmed ({doubt.cause}), then: {error}") from error
    if was_stored:
        _announce(doubt.events)
    return was_stored


def _announce(events: Sequence[Event]) -> None:
    for listener in event_listeners if events else ():
        listener(events)


def decide_and_write(store: StateStore, writer: StateWriter, decide: Decide, deadline: Deadline) -> Changes:
    """Read, decide and commit under the writer's id until it succeeds; return what was written.

    `decide` is given everything committed so far and may raise RefusedError; a fenced writer reads and decides again.
    If `decide` refuses only then, the reason is FENCED. Raises TimedOutError when others keep fencing it, and
    OutcomeUnknown when the brokers stop responding during a commit.
    """
    attempt = 0
    attempt_deadline = deadline
    while True:
        if not writer.is_open:
            writer.open(attempt_deadline)
        state = writer.read_complete(attempt_deadline)
        try:
            changes = decide(state)
        except RefusedError as error:
            if attempt == 0:
                raise
            raise RefusedError(f"{error.message} (another command was faster)", error.hint, Reason.FENCED) from error
        if not changes:
            return changes
        try:
            writer.commit(changes, attempt_deadline)
            return changes
        except NotConfirmed as doubt:
            if was_written(store, writer, doubt, attempt_deadline):
                return changes
            cause = doubt.cause
        attempt += 1
        pause = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))
        if pause > deadline.remaining:
            raise TimedOutError(
                f"other processes kept changing the state of this mirror for {deadline.seconds:g} s (last: {cause})",
                "nothing was changed; try again once the others have ended, and all brokers answer",
            )
        time.sleep(pause)
        attempt_deadline = Deadline(max(deadline.remaining, _ATTEMPT_S))
