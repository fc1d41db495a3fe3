"""Judge two logs: may the copy go on, and from where? Facts in, verdict out; no I/O, no clock.

Facts are what an inspection saw of one partition: who it is (topic ids), where both logs start and end, what the
destination's leader remembers of our producer, and whether the last records of both sides are the same (`Tail`).
The verdict is one of:

* `Copy(offset)`: both logs tell one history up to `offset`, the destination's log end; go on there;
* `Wait(reason)`: a look-up failed or a cluster does not answer: nothing is known, so nothing is done; look again;
* `Fail(reason, offset)`: the logs do not fit. Nothing is repaired here.

Rules are tried in this order, the first that fits decides; identity goes before numbers, because numbers of another
topic mean nothing, and a failed look-up goes before everything.

1. something could not be looked up → Wait
2. topic id of source or destination is not the one we know → Fail
3. somebody with a higher epoch of our producer id was here → Fail FENCED
4. the destination ends where our own appends cannot have brought it → Fail DESTINATION_WRITTEN
5. the tails differ → Fail SOURCE_DIVERGED (the records are ours) or DESTINATION_WRITTEN (they are not)
6. the destination lost records of ours, and the rest could not be compared → Fail DESTINATION_TRUNCATED
7. the source ends before the destination → Fail SOURCE_DIVERGED
8. the source starts after the destination's end → Fail SOURCE_TRUNCATED
9. the source has records below the destination's end that it does not show yet, so nothing was compared → Wait
10. else → Copy
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kmirror.cluster.batch import SEQUENCE_MASK
from kmirror.cluster.client import ProducerState
from kmirror.cluster.wire import format_topic_id
from kmirror.engine.spec import Assignment
from kmirror.errors import Reason


class Tail(Enum):
    """Say how the last batch of the destination compares with the source's at the same offset."""

    SAME = "same"
    DIFFERENT = "different"
    #: Nothing to compare: the destination is empty, or the source no longer has (or not yet shows) that offset.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A look-up that failed. `permanent_after_retries`: worth a FAILED when it stays so for retry.timeout.ms."""

    reason: Reason
    message: str
    permanent_after_retries: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What an inspection saw of one partition. With `trouble`, nothing else is to be looked at."""

    trouble: Trouble | None = None
    source_topic_id: bytes | None = None
    destination_topic_id: bytes | None = None
    source_leader: tuple[int, int] = (-1, -1)
    destination_leader: tuple[int, int] = (-1, -1)
    source_log_start: int = 0
    source_log_end: int = 0
    last_stable_offset: int = 0
    high_watermark: int = 0
    destination_log_start: int = 0
    destination_log_end: int = 0
    producer: ProducerState | None = None
    tail: Tail = Tail.NOTHING
    #: Source leader epoch of the last batch compared; −1 when none was.
    tail_epoch: int = -1
    producer_id_expiration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Go on at `offset`."""

    offset: int
    #: The destination lost this many of our records and gets them again; 0 in the normal case.
    copied_again: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again later; `trouble` says why."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop this partition at `offset`, its first offset that is in doubt."""

    reason: Reason
    message: str
    offset: int


Verdict = Copy | Wait | Fail


def judge(assignment: Assignment, acknowledged: int | None, facts: Facts) -> Verdict:
    """Decide how to go on with a partition; `acknowledged` is the end of what this lane knows to be appended."""
    if facts.trouble:
        return Wait(facts.trouble)
    end = facts.destination_log_end
    return (
        _wrong_identity(assignment, facts)
        or _fenced(assignment, facts)
        or _foreign_tail(assignment, facts)
        or _lost_tail(acknowledged, facts)
        or _wrong_range(facts)
        or _hidden_tail(assignment, facts)
        or Copy(end, max(0, (acknowledged or 0) - end))
    )


def _wrong_identity(assignment: Assignment, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    known, now = assignment.source_topic_id, facts.source_topic_id
    if known and now and known != now:
        return Fail(
            Reason.SOURCE_TOPIC_RECREATED,
            f"source topic {assignment.source_topic} was deleted and created again: "
            f"its id was {format_topic_id(known)} and is {format_topic_id(now)}",
            end,
        )
    known, now = assignment.destination_topic_id, facts.destination_topic_id
    if known and now and known != now:
        return Fail(
            Reason.DESTINATION_TOPIC_DELETED,
            f"mirror topic {assignment.topic} was deleted and created again: "
            f"its id was {format_topic_id(known)} and is {format_topic_id(now)}",
            end,
        )
    return None


def _fenced(assignment: Assignment, facts: Facts) -> Fail | None:
    if facts.producer and facts.producer.producer_epoch > assignment.producer_epoch:
        return Fail(
            Reason.FENCED,
            f"{assignment.destination} was taken out of this engine's hands "
            f"(producer epoch {facts.producer.producer_epoch}, ours is {assignment.producer_epoch})",
            facts.destination_log_end,
        )
    return None


def _sequence_fits(assignment: Assignment, facts: Facts) -> bool | None:
    """Say whether the last append was ours; None when the destination's leader does not remember us."""
    if facts.producer is None:
        return None
    expected = (facts.destination_log_end - assignment.filled_offsets) & SEQUENCE_MASK
    return (facts.producer.last_sequence + 1) & SEQUENCE_MASK == expected


def _foreign_tail(assignment: Assignment, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    fits = _sequence_fits(assignment, facts)
    if fits is False:
        return Fail(
            Reason.DESTINATION_WRITTEN,
            f"somebody else wrote to mirror topic {assignment.destination}: it ends at offset {end}, "
            "which this mirror's own writes do not reach",
            end,
        )
    if facts.tail is Tail.DIFFERENT:
        if fits:
            return Fail(
                Reason.SOURCE_DIVERGED,
                f"the history of {assignment.source} was rewritten: its records just below offset {end} "
                "are not the ones copied from it",
                end,
            )
        return Fail(
            Reason.DESTINATION_WRITTEN,
            f"the records of {assignment.destination} just below offset {end} are not the source's",
            end,
        )
    return None


def _lost_tail(acknowledged: int | None, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    if acknowledged is not None and end < acknowledged and facts.tail is Tail.NOTHING and end > 0:
        return Fail(
            Reason.DESTINATION_TRUNCATED,
            f"the destination lost its offsets {end} to {acknowledged - 1}, "
            "and what remains cannot be compared with the source",
            end,
        )
    return None


def _wrong_range(facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    if facts.source_log_end < end:
        return Fail(
            Reason.SOURCE_DIVERGED,
            f"the source ends at offset {facts.source_log_end}, but {end} had been copied from it: "
            f"{end - facts.source_log_end} records that it had are gone",
            facts.source_log_end,
        )
    if facts.source_log_start > end:
        lost = facts.source_log_start - end
        return Fail(
            Reason.SOURCE_TRUNCATED,
            f"the source starts at offset {facts.source_log_start}: its {lost} records "
            f"{end} to {facts.source_log_start - 1} were deleted before they were copied",
            end,
        )
    return None


def _hidden_tail(assignment: Assignment, facts: Facts) -> Wait | None:
    """After an election a leader may hide its last records for a while; they may be others than the ones copied."""
    end = facts.destination_log_end
    if facts.tail is Tail.NOTHING and end > max(facts.source_log_start, facts.destination_log_start):
        message = f"{assignment.source} does not show its records below offset {end} yet"
        return Wait(Trouble(Reason.SOURCE_UNREACHABLE, message))
    return None
