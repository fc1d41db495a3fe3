"""One transactional writer to the internal topics: opening it fences any process that wrote under its name before.

The transactional id is the lock. `open` makes the broker end the predecessor's transaction, committed or aborted, and
refuse all it sends afterwards; what is read then cannot be changed under this name any more, so a decision taken
on it still holds when it is committed, or the commit is refused.

A commit that was not confirmed is in doubt, also when the broker says "fenced": librdkafka repeats a request whose
answer was lost, and the repetition may meet the successor. The next `open` ends the doubt, since the record then either
stands at its offset or never will.
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

#: Brokers abort what a dead writer left open after this; it hides what others write meanwhile.
_TRANSACTION_TIMEOUT_MS = 10_000
#: A call into librdkafka lasts no longer, so that signals and refused passwords are noticed.
_CALL_S = 0.5
#: Each call to init_transactions also makes the library try at once what it would try again in half a second.
_INIT_CALL_S = 0.05
#: How long the fate of a commit in doubt is looked up, even when the caller's time is over.
_SETTLE_S = 10.0
#: An attempt that begins in time has at least this long, so that being late is not mistaken for being cut off.
_ATTEMPT_S = 5.0
#: A fenced writer waits a random time before it fences others, at most this, doubling from the first to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

Decide = Callable[[State], Changes]


class NotConfirmed(Exception):  # noqa: N818 - not a failure: it may have happened
    """A transaction was not confirmed; `place` is (topic, offset) of a record in it, None when it was not written."""

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
        """Take the transactional id over; raise UnreachableError when the brokers do not give it in time."""
        from confluent_kafka import KafkaException, Producer

        self.close()
        what = f"taking the transactional id {self.transactional_id}"
        producer = client(
            Producer,
            {
                **self._store.config,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                # librdkafka wants it no longer than the transaction's time-out.
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
                with suppress(KafkaException):  # a fatal error is raised here, too; the next call tells it
                    producer.poll(0)
                self._store.raise_if_hopeless()
                if not error.args[0].retriable():
                    raise known_error(error.args[0], what, self._store.grant(error.args[0].code())) from error
                if deadline.passed:
                    raise self._store.watch.silence(f"{what}: not done within {deadline.seconds:g} s") from error
        self._producer = producer

    def commit(self, changes: Changes, deadline: Deadline) -> None:
        """Write all of it or nothing. Raises NotConfirmed, or the error that kept it from being written.

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
            told = self._not_written(refused[0] if refused else error.args[0])
            self.close()
            raise told from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the producer; an unfinished transaction is left to the next `open` or to the broker's time-out."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _not_written(self, told: Any) -> Exception:
        # the commit is asked for only when every record is delivered, so nothing of this will ever be seen
        from confluent_kafka import KafkaError, KafkaException

        # a producer that was fenced between two records says of the next one only that it is broken (_FATAL)
        shut_out = (
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.PRODUCER_FENCED,
            KafkaError._FATAL,
        )
        if told.code() in shut_out:
            return NotConfirmed(None, told.str())
        with suppress(KafkaException):
            self._producer.abort_transaction(_CALL_S)
        what = f"writing to {STATE_TOPIC} and {EVENTS_TOPIC}"
        return known_error(told, what, self._store.grant(told.code()))


def settled(store: StateStore, writer: Writer, doubt: NotConfirmed, deadline: Deadline) -> bool:
    """Open the writer again if needed and tell whether what is in doubt was written.

    Raises OutcomeUnknown when the brokers do not tell, at least 10 s long.
    """
    if doubt.place is None:
        return False
    patience = Deadline(max(deadline.remaining, _SETTLE_S))
    try:
        if not writer.is_open:
            writer.open(patience)
        return store.holds(*doubt.place, patience)
    except KmirrorError as error:
        raise OutcomeUnknown(f"a change of {STATE_TOPIC} was not confirmed ({doubt.cause}), then: {error}") from error


def write_decided(store: StateStore, writer: Writer, decide: Decide, deadline: Deadline) -> Changes:
    """Read, decide and commit under the writer's name until it is done; return what was written.

    `decide` sees everything committed so far and may raise RefusedError; a writer that is fenced reads and
    decides again. When what held before no longer does, the refusal's reason is FENCED. Raises TimedOutError when
    others keep fencing it, and OutcomeUnknown when the brokers stop responding during a commit.
    """
    attempt = 0
    patience = deadline
    while True:
        if not writer.is_open:
            writer.open(patience)
        state = store.read_complete(patience)
        try:
            changes = decide(state)
        except RefusedError as error:
            if attempt == 0:
                raise
            raise RefusedError(f"{error.message} (another command was faster)", error.hint, Reason.FENCED) from error
        if not changes:
            return changes
        try:
            writer.commit(changes, patience)
            return changes
        except NotConfirmed as doubt:
            if settled(store, writer, doubt, patience):
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
        patience = Deadline(max(deadline.remaining, _ATTEMPT_S))


def _produce(producer: Any, topic: str, key: bytes, value: bytes | None, on_delivery: Callable[..., None]) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, partition=0, on_delivery=on_delivery)
            return
        except BufferError:
            producer.poll(_CALL_S)
