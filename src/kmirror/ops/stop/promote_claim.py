"""The stored claim of a waiting promote: a heartbeat, and which topics wait.

A killed promote leaves its record, but no longer renews it. Once the next promote has watched that for long enough, it
takes over the topics: those that waited keep waiting, or are given back if it does not promote them, and stops that had
begun are completed. One that was only frozen finds that out, and leaves everything to the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from kmirror.commands import on_topics
from kmirror.errors import KmirrorError, PartlyDoneError, Reason, RefusedError, TimedOutError
from kmirror.ops.base.context import Destination, actor, change, now_ms, own_event
from kmirror.state.event_records import Event
from kmirror.state.records import PENDING_PROMOTE, PENDING_STOP, DesiredState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.state.waiting import boottime
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.words import at_time

_HEARTBEAT_S = 3.0
#: After this long a thread renews the claim, because whoever holds it is busy with something else.
_BUSY_S = 6.0
#: A claim that was watched for this long and was not renewed belongs to a dead promote, whatever the clocks say.
_DEAD_AFTER_S = 15.0
_STEP_S = 0.5
#: The least time for recording something.
_LEAST_S = 2.0


class ClaimLostError(PartlyDoneError):
    """Another promote has taken over the topics: nothing of theirs may be changed any more."""


class Claim:
    """Hold topics of a mirror for a promote that waits; for one thread, besides its own."""

    def __init__(self, destination: Destination, mirror: str, say: Callable[[str], None]) -> None:
        self._destination = destination
        self._mirror = mirror
        self._say = say
        self._began_ms = now_ms()
        self._renewed_at = 0.0
        self._ended = threading.Event()
        #: True once it was found that another promote has taken over.
        self.is_lost = False
        #: True once it is recorded.
        self.is_recorded = False
        #: The claim of an earlier promote, which is dead.
        self._before: WorkflowRecord | None = None

    def await_predecessor(self, stopping: threading.Event, until: float) -> None:
        """Wait until it is certain that no other promote waits; `until` is a time of `time.monotonic`.

        Raises:
            RefusedError: another one waits.
            TimedOutError: that is not known in time.
        """
        found = self._found(self._destination.state())
        if found is not None:
            self._say(
                f"a promote of {found.actor} started at {at_time(found.began_ms)} and has not ended: checking"
                " whether it is alive"
            )
        dead_at = boottime() + _DEAD_AFTER_S
        while found is not None and boottime() < dead_at:
            if stopping.wait(_STEP_S) or time.monotonic() >= until:
                raise TimedOutError(
                    f"it is not yet known whether the promote of {found.actor}, started at"
                    f" {at_time(found.began_ms)}, is still waiting",
                    f"it counts as dead once no heartbeat was seen for {_DEAD_AFTER_S:g} s: run the same command again,"
                    " and give it longer than that",
                )
            again = self._found(self._destination.state())
            if again is not None and again.last_seen_ms != found.last_seen_ms:
                raise _another_promote(self._mirror, again)
            found = again
        self._before = found

    def begin(self, topics: Collection[str], until: float) -> tuple[list[str], list[str]]:
        """Record that these topics wait to be promoted, and no other ones of the mirror.

        Returns those whose stop had begun and that therefore do not, and the mirror's other topics. Brokers are waited
        for until `until`, a time of `time.monotonic`.

        Raises RefusedError: another promote waits, or another operation on a topic is in progress.
        """
        begun: list[str] = []
        others: list[str] = []

        def decide(state: State) -> Changes:
            found = self._found(state)
            if found is not None and found != self._before:
                raise _another_promote(self._mirror, found)
            waiting, begun[:] = self._claimed(state, topics)
            left = [topic for topic in state.topics(self._mirror) if topic.topic not in topics]
            others[:] = [topic.topic for topic in left]
            details = {"topics": sorted(topics)[:100], "count": len(topics)}
            event = own_event(self._mirror, "promote", "WAITING", details)
            given_back, events = self._given_back(left)
            return Changes((self._record(), *waiting, *given_back), (), (event, *events))

        change(self._destination, self._mirror, decide, _patience(until))
        self.is_recorded = True
        self._renewed_at = time.monotonic()
        threading.Thread(target=self._keep, name="kmirror-claim", daemon=True).start()
        return begun, others

    def foresee(self, topics: Collection[str]) -> None:
        """Raise what `begin` would about these topics: RefusedError if another operation on one is in progress."""
        self._claimed(self._destination.state(), topics)

    def _claimed(self, state: State, topics: Collection[str]) -> tuple[list[TopicRecord], list[str]]:
        """Return the records of topics that can wait, and the names of those whose stop had begun."""
        waiting, begun = [], []
        for name in topics:
            topic = state.topic(self._mirror, name)
            if topic is not None and topic.pending_operation in (None, PENDING_PROMOTE):
                desired = DesiredState.ACTIVE if topic.desired is DesiredState.PAUSED else topic.desired
                waiting.append(replace(topic, desired=desired, pending_operation=PENDING_PROMOTE))
            elif topic is not None and has_unfinished_promote(topic):
                begun.append(name)
            else:
                raise _not_promotable(name, topic)
        return waiting, begun

    def renew(self, until: float) -> None:
        """Renew the claim if its heartbeat is due; brokers are waited for until `until`. Raises ClaimLostError."""
        if time.monotonic() - self._renewed_at > _HEARTBEAT_S:
            self._renew(self._destination, _patience(until))

    def _renew(self, destination: Destination, timeout: float) -> None:
        def decide(state: State) -> Changes:
            self.require(state)
            return Changes((self._record(),))

        self._renewed_at = time.monotonic()
        change(destination, self._mirror, decide, timeout)

    def _keep(self) -> None:
        """Renew the claim, over connections of its own, while comparing or stopping takes long."""
        here = self._destination
        while not self._ended.wait(_STEP_S) and not self.is_lost:
            if time.monotonic() - self._renewed_at > _BUSY_S:
                with suppress(KmirrorError), Destination.open(here.properties, cluster_id=here.cluster_id) as own:
                    self._renew(own, DEFAULT_TIMEOUT_S)

    def require(self, state: State) -> None:
        """Raise ClaimLostError if another promote has taken over."""
        found = self._found(state)
        if found is None or (found.actor, found.began_ms) != (actor(), self._began_ms):
            self.is_lost = True
            raise ClaimLostError(
                f"another promote of mirror {self._mirror} has taken over, because this one did not respond",
                "check with `kmirror describe` and `kmirror events`",
                Reason.FENCED,
            )

    def required(self) -> AbstractContextManager[None]:
        """Let all that is changed meanwhile require, under the lock, that the claim is still ours."""
        return self._destination.requiring(self.require)

    def is_held(self) -> bool:
        """Return whether no other promote is known to have taken over."""
        try:
            self.require(self._destination.state())
        except KmirrorError:
            return not self.is_lost
        return True

    def release(self, topics: Collection[str], *, ends: bool = False) -> str | None:
        """Release topics that were not stopped; return an error message, or None. `ends`: delete the claim too."""
        if ends:
            self._ended.set()

        def decide(state: State) -> Changes:
            self.require(state)
            found = [state.topic(self._mirror, name) for name in topics]
            given_back, events = self._given_back(topic for topic in found if topic is not None)
            return Changes(given_back, (self._record().key,) if ends else (), events)

        try:
            change(self._destination, self._mirror, decide)
        except ClaimLostError as error:
            return error.message
        except KmirrorError as error:
            return f"topics that were not stopped are still shown as waiting: {error.message}"
        return None

    def _given_back(self, topics: Iterable[TopicRecord]) -> tuple[tuple[TopicRecord, ...], tuple[Event, ...]]:
        """Return the records of those that wait as they are once they do not, and the event."""
        left = [topic for topic in topics if topic.pending_operation == PENDING_PROMOTE]
        if not left:
            return (), ()
        details = {"topics": [topic.topic for topic in left][:100], "count": len(left)}
        event = own_event(self._mirror, "promote", "GIVEN_BACK", details)
        return tuple(replace(topic, pending_operation=None) for topic in left), (event,)

    def _found(self, state: State) -> WorkflowRecord | None:
        return state.workflow(self._mirror, PROMOTE)

    def _record(self) -> WorkflowRecord:
        return WorkflowRecord(self._mirror, PROMOTE, "WAITING", actor(), self._began_ms, now_ms())


def _patience(until: float) -> float:
    # what begins in time is not an outage because the destination is far away
    return min(DEFAULT_TIMEOUT_S, max(_LEAST_S, until - time.monotonic()))


def has_unfinished_promote(topic: TopicRecord) -> bool:
    """Return whether a promote has begun to stop a topic and has not finished."""
    return topic.pending_operation == PENDING_STOP and topic.stop_reason is Reason.PROMOTED


def _not_promotable(name: str, topic: TopicRecord | None) -> RefusedError:
    if topic is None:
        return RefusedError(f"{name} is no longer a mirror topic", "check with `kmirror events`")
    if topic.pending_operation == PENDING_STOP:
        verb = "remove" if topic.stop_reason is Reason.REMOVED else "failover"
        return RefusedError(
            f"{name} cannot be promoted now: a {verb} of it has started",
            f"`{on_topics(verb, topic.mirror, [name])}` finishes it",
        )
    return RefusedError(f"{name} cannot be promoted now: {topic.pending_operation}", "check with `kmirror describe`")


def _another_promote(mirror: str, found: WorkflowRecord) -> RefusedError:
    return RefusedError(
        f"another promote of mirror {mirror} is waiting: {found.actor}, since {at_time(found.began_ms)}",
        "wait for it, or interrupt it there; topics that it has not stopped go back to ACTIVE then",
    )
