"""Record when topics breach their objectives, and when they meet them again. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.settings.durations import format_duration
from kmirror.status.objective import BREACHED, MET, OBJECTIVE, Cause, cause_of, trouble_of
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.topic_status import TopicStatus

#: How often topics are looked at.
LOOK_SECONDS = 5.0
#: How many events one look records at most; the others follow with the next ones.
_MOST_EVENTS = 100


class ObjectiveWatch:
    """Know which topics of one mirror have breached their objectives; for one thread."""

    def __init__(self, journal: MirrorJournal, engine_since_ms: int) -> None:
        self._journal = journal
        self._engine_since_ms = engine_since_ms
        #: Since when topics are breached, by name.
        self._breached: dict[str, int] = {}
        #: The last trouble of topics since they were within their objectives, and when it was seen last: their time lag
        #: may be unknown during it.
        self._troubles: dict[str, tuple[Cause, int]] = {}
        self._looked_at: float | None = None
        self._throttled_ms = 0

    def is_due(self, at: float, *, has_rules: bool) -> bool:
        """Return whether it is time to look again; without rules only breaches are left to end."""
        is_time = self._looked_at is None or at - self._looked_at >= LOOK_SECONDS
        return is_time and (has_rules or bool(self._breached))

    def take(self, topics: Sequence[TopicStatus], throttled_ms: int, at: float, now_ms: int) -> None:
        """Look at the topics; `throttled_ms` is for how long lanes have waited for the mirror's limit so far.

        A time lag that is unknown changes nothing: it neither breaches an objective nor meets it.
        """
        is_throttled, self._throttled_ms, self._looked_at = throttled_ms > self._throttled_ms, throttled_ms, at
        room = _MOST_EVENTS
        for topic in topics:
            since_ms = self._breached.get(topic.topic)
            if topic.objective_state in (ObjectiveState.WITHIN, None):
                self._troubles.pop(topic.topic, None)
            elif (trouble := trouble_of(topic.partitions)) is not None:
                self._troubles[topic.topic] = trouble, now_ms
            if room and topic.objective_state is ObjectiveState.BREACHED and since_ms is None:
                self._breached[topic.topic] = now_ms
                self._record_breach(topic, now_ms, is_throttled=is_throttled)
                room -= 1
            elif room and since_ms is not None and topic.objective_state in (ObjectiveState.WITHIN, None):
                del self._breached[topic.topic]
                self._record_end(topic.topic, now_ms - since_ms)
                room -= 1
        self._forget_others({topic.topic for topic in topics})

    def _record_breach(self, topic: TopicStatus, now_ms: int, *, is_throttled: bool) -> None:
        # what is missing now may have arrived at the source after the trouble
        earlier, seen_ms = self._troubles.get(topic.topic, (None, 0))
        time_lag_ms = max((one.time_lag_ms or 0 for one in topic.partitions), default=0)
        if now_ms - time_lag_ms > seen_ms:
            earlier = None
        cause = cause_of(topic.partitions, self._engine_since_ms, now_ms, is_throttled=is_throttled, earlier=earlier)
        details = {
            "topic": topic.topic,
            "objectiveMs": topic.objective_ms,
            "timeLagMs": time_lag_ms,
            "cause": cause.code,
            "message": cause.message,
        }
        self._journal.record(OBJECTIVE, BREACHED, details)
        objective = format_duration(topic.objective_ms or 0)
        text = f"{topic.topic} has breached its objective of {objective} ({cause.code}): {cause.message}"
        self._journal.note(text, Level.WARNING)

    def _record_end(self, topic: str, lasted_ms: int) -> None:
        self._journal.record(OBJECTIVE, MET, {"topic": topic, "lastedMs": lasted_ms})
        self._journal.note(f"{topic} meets its objective again, after {format_duration(lasted_ms // 1000 * 1000)}")

    def _forget_others(self, names: Collection[str]) -> None:
        """Forget topics that are not of the mirror any more."""
        for known in (self._breached, self._troubles):
            for name in known.keys() - set(names):
                del known[name]
