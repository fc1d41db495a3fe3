"""A transactional writer to the internal topics: opening it fences any process that used its transactional id before.

The transactional id is the lock. `open` makes the broker end the predecessor's transaction, committed or aborted, and
refuse all it sends afterwards. What is read then cannot change under this id any more, so a decision based on it still
holds when it is committed, or the commit is refused.

A commit that was not confirmed is in doubt, even if the broker says "fenced": librdkafka repeats a request whose answer
was lost, and the repetition may meet the successor. The next `open` ends the doubt: the record is then at its offset,
or never will be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, TimedOutError
from kmirror.state.client import Deadline, client, known_error
from kmirror.state.events import encode_event
from kmirror.state.records import encode, encode_key
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import EVENTS_TOPIC, STATE_TOPIC, StateStore

#: After this, brokers abort a dead writer's transaction, which hides what others write meanwhile.
_TRANSACTION_TIMEOUT_MS = 10_000
#: The longest call into librdkafka, so that signals and refused passwords are noticed.
_CALL_S = 0.5
#: Short, because each call to init_transactions makes the library retry at once, not after half a second.
_INIT_CALL_S = 0.05
#: How long the outcome of a commit in doubt is looked up, even after the caller's deadline.
_SETTLE_S = 10.0
#: The least time for an attempt that begins before the deadline, so that being late does not look like an outage.
_ATTEMPT_S = 5.0
#: Bounds of the random pause before a fenced writer tries again, doubled with each attempt.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

Decide = Callable[[State], Changes]


class NotConfirmed(Exception):  # noqa: N818 - not a failure: it may have happened
    """A transaction was not confirmed; `place` is (topic, offset) of one of its records, None if it was not written."""

    def __init__(self, place: tuple[str, int] | None, cause: str) -> None:
        super().__init__(place, cause)
        self.place = place
        self.cause = cause


class Writer:
    """Write transactions under one transactional id; used by one thread at a time."""

    def __init__(self, store: StateStore, role: str, mirror: str) -> None:
        self.transactional_id = f"kmirror-{role}-{quote(mirror, safe='')}"
        self._store = store
        self._producer: Any = None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self, deadline: Deadline) -> None:
        """Take over the transactional id; raise UnreachableError if the brokers do not grant it in time."""
        from confluent_kafka import KafkaException, Producer

        self.close()
        what = f"taking the transactional id {self.transactional_id}"
        producer = client(
            Producer,
            {
                **self._store.config,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                # librdkafka allows no more than the transaction's time-out
                "socket.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            },
            self._store.watch,
        )
        while True:
            try:
                producer.init_transactions(min(_INIT_CALL_S, deadline.remaining))
                break
            except KafkaException as error:
                with suppress(KafkaException):  # a fatal error is raised here, too; the next call reports it
                    producer.poll(0)
                self._store.raise_if_hopeless()
                if not error.args[0].retriable():
                    raise known_error(error.args[0], what, self._store.grant(error.args[0].code())) from error
                if deadline.passed:
                    raise self._store.watch.no_answer(f"{what}: not done within {deadline.seconds:g} s") from error
        self._producer = producer

    def commit(self, changes: Changes, deadline: Deadline) -> None:
        """Write all of the changes or none. Raises NotConfirmed, or the error that prevented the write.

        After any error the writer is closed.
        """
        from confluent_kafka import KafkaError, KafkaException

        delivered: list[tuple[str, int]] = []
        refused: list[Any] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                    refused.append(error)
            else:
                delivered.append((message.topic(), message.offset()))

        messages: list[tuple[str, bytes, bytes | None]] = [
            *((STATE_TOPIC, *encode(record)) for record in changes.records),
            *((STATE_TOPIC, encode_key(key), None) for key in changes.tombstones),
            *((EVENTS_TOPIC, *encode_event(event)) for event in changes.events),
        ]
        producer = self._producer
        try:
            producer.begin_transaction()
            for topic, key, value in messages:
                _produce(producer, topic, key, value, on_delivery)
            while True:
                try:
                    producer.commit_transaction(min(_CALL_S, deadline.remaining))
                    return
                except KafkaException as error:
                    self._store.raise_if_hopeless()
                    if not error.args[0].retriable() or deadline.passed:
                        raise
        except KafkaException as error:
            if len(delivered) == len(messages):
                self.close()
                raise NotConfirmed(delivered[0], error.args[0].str()) from error
            failure = self._not_written(refused[0] if refused else error.args[0])
            self.close()
            raise failure from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the producer; an unfinished transaction ends by the next `open` or the broker's time-out."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _not_written(self, error: Any) -> Exception:
        # the commit is sent only after every record is delivered, so nothing of this becomes visible
        from confluent_kafka import KafkaError, KafkaException

        # a producer that was fenced between two records reports only _FATAL for the next one
        fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError._FATAL)
        if error.code() in fenced:
            return NotConfirmed(None, error.str())
        with suppress(KafkaException):
            self._producer.abort_transaction(_CALL_S)
        what = f"writing to {STATE_TOPIC} and {EVENTS_TOPIC}"
        return known_error(error, what, self._store.grant(error.code()))


def was_written(store: StateStore, writer: Writer, doubt: NotConfirmed, deadline: Deadline) -> bool:
    """Reopen the writer if needed, and return whether the commit in doubt was written.

    Raises OutcomeUnknown when the brokers do not answer within the deadline or 10 s, whichever is longer.
    """
    if doubt.place is None:
        return False
    lookup_deadline = Deadline(max(deadline.remaining, _SETTLE_S))
    try:
        if not writer.is_open:
            writer.open(lookup_deadline)
        return store.holds(*doubt.place, lookup_deadline)
    except KmirrorError as error:
        raise OutcomeUnknown(f"a change of {STATE_TOPIC} was not confirmed ({doubt.cause}), then: {error}") from error


def decide_and_write(store: StateStore, writer: Writer, decide: Decide, deadline: Deadline) -> Changes:
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
        state = store.read_complete(attempt_deadline)
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
                "nothing was changed; try again once the others have ended",
            )
        time.sleep(pause)
        attempt_deadline = Deadline(max(deadline.remaining, _ATTEMPT_S))


def _produce(producer: Any, topic: str, key: bytes, value: bytes | None, on_delivery: Callable[..., None]) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, partition=0, on_delivery=on_delivery)
            return
        except BufferError:
            producer.poll(_CALL_S)
