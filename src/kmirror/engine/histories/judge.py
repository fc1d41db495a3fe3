"""Judge two logs: may the copy continue, and from where? Facts in, verdict out; no I/O, no clock.

Facts are what an inspection saw of one partition: who it is (topic ids), where both logs start and end, what the
destination's leader remembers of our producer, and how the ends of both logs compare (`tails`).
The verdict is one of:

* `Copy(offset)`: both logs have one history up to `offset`, the destination's log end; continue there, or after a loss
  that is accepted;
* `AdvanceStart(to)`: nothing of the source is in the destination yet, and its log has to begin at `to` first: filled
  up to there, and then trimmed;
* `Wait(trouble)`: not everything is known yet, so nothing is done; look again;
* `Fail(reason, offset)`: the logs do not fit. Nothing is repaired here.

Rules are tried in this order, the first that fits decides; identity goes before numbers, because numbers of another
topic mean nothing, and a failed look-up goes before everything.

1. something could not be looked up → Wait
2. topic id of source or destination is not the one we know → Fail
3. another writer used a higher epoch of our producer id → Fail FENCED
4. the tails differ → Fail SOURCE_DIVERGED (what differs is ours) or DESTINATION_WRITTEN (it is not)
5. the source ends before the destination → Fail SOURCE_DIVERGED, or DESTINATION_WRITTEN where rule 7 would fit too
6. the source has records below the destination's end that it does not show yet, so they were not compared → Wait
7. the destination ends with records of another writer, and nothing of either log could be compared
   → Fail DESTINATION_WRITTEN
8. the destination lost records of ours, and what is left of it proves nothing → Fail DESTINATION_TRUNCATED, unless
   this loss was accepted
9. the destination ends with filler, above the offset that it was to lead to: the source starts lower than it did. A
   new leader whose retention lags will catch up; anything else would skip records that are there
   → Wait, for as long as a failure is retried
10. the destination ends with filler, or is empty, and has to begin further on than it ends → AdvanceStart. With filler
    leads there exactly → AdvanceStart too: the filler has still to be taken away
11. the source starts after the destination's end → Fail SOURCE_TRUNCATED, unless this loss was accepted, or any is
12. else → Copy; filler that the destination begins with, as before it was trimmed, is trimmed again

That nothing could be compared is no misfit by itself (rule 12): markers, aborted transactions and cleaners leave logs
like that, and a log that one side has emptied.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.cluster.protocol.producer_state import ProducerState
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.fork import Fork
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.words import counted


class Tail(Enum):
    """Say how the destination's last records compare with the source's at the same offsets."""

    SAME = "same"
    DIFFERENT = "different"
    #: Nothing to compare: no offset was found at which both show a record, and none that they contradict each other at.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ForeignWriters:
    """The records of a mirror partition from one offset on.

    `first_producer_id` wrote the first records there, None where there are none. `records` of other writers than the
    mirror were counted, the first of them by `producer_id`; not all of them where `is_complete` is false.
    """

    first_producer_id: int | None = None
    records: int = 0
    producer_id: int | None = None
    is_complete: bool = True


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
    #: What the destination's leader remembers of our producer.
    producer: ProducerState | None = None
    tail: Tail = Tail.NOTHING
    #: Epoch of the source's batch that holds the offset before the destination's end; None when there is none.
    tail_epoch: int | None = None
    producer_id_expiration_ms: int | None = None
    #: Who wrote the destination's batch that differs, or else its last one; None when it holds no batch.
    tail_producer_id: int | None = None
    #: The lowest offset that was found to differ.
    differs_at: int | None = None
    #: The destination ends with filler of ours: nothing of the source is in it.
    only_filler: bool = False
    #: Another writer's records are at the destination's end, and nothing was found to compare.
    unproven: bool = False
    #: The destination begins with filler again, up to here: its broker died before it had noted where the log starts.
    filler_end: int | None = None
    #: Where exactly the two logs fork, and what follows there, where they are known to; None else.
    fork: Fork | None = None
    foreign_writers: ForeignWriters | None = None

    @property
    def unused_coordinator_epoch(self) -> int:
        """The lowest epoch above all that the destination's leader has seen in markers of ours."""
        return self.producer.coordinator_epoch + 1 if self.producer else 0

    def filled_offsets(self, producer_epoch: int) -> int:
        """Return what to subtract from an offset for its sequence number, modulo 2^31: the offsets that have none.

        Markers take offsets, but no sequence numbers. A producer that the leader does not remember may begin with any;
        one that comes with a new epoch has to begin with 0.
        """
        if self.producer is None:
            return 0
        is_new_epoch = self.producer.producer_epoch < producer_epoch
        next_sequence = 0 if is_new_epoch else self.producer.last_sequence + 1
        return (self.destination_log_end - next_sequence) & SEQUENCE_MASK


@dataclass(frozen=True, slots=True)
class Copy:
    """Continue at `offset`, with sequence numbers `filled_offsets` lower than offsets (modulo 2^31)."""

    offset: int
    #: The destination lost this many of our records and gets them again; 0 in the normal case.
    copied_again: int = 0
    filled_offsets: int = 0
    #: The source has lost what is between `offset` and here: nothing will ever be shown there. None: it has not.
    skip_to: int | None = None
    #: The destination's log is to begin here once it gets so far, behind such a loss or filler; None: as it does.
    trim_to: int | None = None


@dataclass(frozen=True, slots=True)
class AdvanceStart:
    """Make the destination's log start at `to`, and look again; sequence numbers as in `Copy`."""

    to: int
    filled_offsets: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again later; `trouble` says why."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop this partition, which cannot continue from `offset`."""

    reason: Reason
    message: str
    offset: int


Verdict = Copy | AdvanceStart | Wait | Fail


def judge(
    assignment: Assignment, acknowledged: int | None, facts: Facts, *, first_offset: int = 0, begun: bool = False
) -> Verdict:
    """Decide how a partition continues.

    `acknowledged` is the end of what this lane knows to be appended, None before its first look. A mirror that is to
    begin above the source's log start begins at `first_offset`. `begun`: records of the source were in the destination
    before, so that an empty one is not the beginning.
    """
    if facts.trouble:
        return Wait(facts.trouble)
    return (
        _wrong_identity(assignment, facts)
        or _fenced(assignment, facts)
        or _different_tail(assignment, facts)
        or _source_too_short(assignment, facts)
        or _hidden_tail(assignment, facts)
        or _unproven_tail(assignment, facts)
        or _lost_tail(assignment, acknowledged, facts)
        or _beginning(assignment, facts, first_offset, begun)
        or _source_too_late(assignment, facts)
        or _go_on(assignment, acknowledged, facts)
    )


def _wrong_identity(assignment: Assignment, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    known, now = assignment.source_topic_id, facts.source_topic_id
    if known and now and known != format_topic_id(now):
        return Fail(
            Reason.SOURCE_TOPIC_RECREATED,
            f"source topic {assignment.source_topic} was deleted and created again: "
            f"its id was {known} and is {format_topic_id(now)}",
            end,
        )
    known, now = assignment.destination_topic_id, facts.destination_topic_id
    if known and now and known != format_topic_id(now):
        return Fail(
            Reason.DESTINATION_TOPIC_DELETED,
            f"mirror topic {assignment.topic} was deleted and created again: "
            f"its id was {known} and is {format_topic_id(now)}",
            end,
        )
    return None


def _fenced(assignment: Assignment, facts: Facts) -> Fail | None:
    if facts.producer and facts.producer.producer_epoch > assignment.producer_epoch:
        return Fail(
            Reason.FENCED,
            f"{assignment.destination} is no longer written by this engine: it was fenced "
            f"(producer epoch {facts.producer.producer_epoch}, ours is {assignment.producer_epoch})",
            facts.destination_log_end,
        )
    return None


def _is_foreign(assignment: Assignment, facts: Facts) -> bool:
    """Tell whether another client wrote what differs."""
    if facts.foreign_writers is not None:
        first = facts.foreign_writers.first_producer_id
        return first is not None and first != assignment.producer_id
    return facts.tail_producer_id is not None and facts.tail_producer_id != assignment.producer_id


def _written(assignment: Assignment, facts: Facts, at: int | None, why: str) -> Fail:
    """Say that another client wrote to the mirror: where, how much, and who."""
    foreign_writers = facts.foreign_writers
    known = foreign_writers.producer_id if foreign_writers else facts.tail_producer_id
    writer = f"producer id {known}" if known is not None and known >= 0 else "a producer without an id"
    many = ""
    if foreign_writers is not None and foreign_writers.records:
        bound = "" if foreign_writers.is_complete else "at least "
        many = f"{bound}{counted(foreign_writers.records, 'record')}, "
    from_there = f"from offset {at} on, " if at is not None else ""
    return Fail(
        Reason.DESTINATION_WRITTEN,
        f"another client wrote to mirror topic {assignment.destination} ({many}{from_there}{writer}): {why}",
        facts.destination_log_end if at is None else at,
    )


def _ends_differ(facts: Facts) -> str:
    return f"it ends at offset {facts.destination_log_end}, and its source at {facts.source_log_end}"


def _different_tail(assignment: Assignment, facts: Facts) -> Fail | None:
    if facts.tail is not Tail.DIFFERENT:
        return None
    end, fork = facts.destination_log_end, facts.fork
    at = fork.offset if fork else facts.differs_at
    if _is_foreign(assignment, facts):
        if at is not None and facts.source_log_end <= at:
            return _written(assignment, facts, at, _ends_differ(facts))
        return _written(assignment, facts, at, f"it does not hold what {assignment.source} does there")
    if fork is None or at is None:
        message = f"the history of {assignment.source} was rewritten: at offset {at} it does not hold what was copied"
        return Fail(Reason.SOURCE_DIVERGED, message, end)
    proved = "" if fork.agreed_at is not None else "; below that, nothing is left on both sides to be compared"
    return Fail(
        Reason.SOURCE_DIVERGED,
        f"the history of {assignment.source} was rewritten: from offset {at} on it does not hold what was copied, "
        f"{counted(end - at, 'record')} up to offset {end - 1}{proved}",
        at,
    )


def _source_too_short(assignment: Assignment, facts: Facts) -> Fail | None:
    end, source_end = facts.destination_log_end, facts.source_log_end
    if source_end >= end:
        return None
    if facts.unproven or (facts.foreign_writers is not None and _is_foreign(assignment, facts)):
        return _written(assignment, facts, source_end, _ends_differ(facts))
    return Fail(
        Reason.SOURCE_DIVERGED,
        f"the source ends at offset {source_end}, but {end} had been copied from it: "
        f"{counted(end - source_end, 'record is', 'records are')} no longer there",
        source_end,
    )


def _hidden_tail(assignment: Assignment, facts: Facts) -> Wait | None:
    """After an election a leader may hide its last records for a while; they may be others than the ones copied."""
    end = facts.destination_log_end
    if facts.last_stable_offset < end:
        message = f"{assignment.source} does not show its records below offset {end} yet"
        return Wait(Trouble(Reason.SOURCE_UNREACHABLE, message))
    return None


def _unproven_tail(assignment: Assignment, facts: Facts) -> Fail | None:
    if facts.unproven:
        why = "the last records are not this mirror's, and the source has nothing left to compare them with"
        return _written(assignment, facts, None, why)
    return None


def _lost_tail(assignment: Assignment, acknowledged: int | None, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    if acknowledged is None or end >= acknowledged or facts.tail is not Tail.NOTHING or facts.only_filler:
        return None
    if end == 0 and facts.source_log_start == 0:
        return None  # all of it is still there to be copied again
    if _is_accepted(assignment, end):
        return None
    return Fail(
        Reason.DESTINATION_TRUNCATED,
        f"the destination lost offsets {end} to {acknowledged - 1}, "
        "and what remains cannot be compared with the source",
        end,
    )


def _beginning(assignment: Assignment, facts: Facts, first_offset: int, begun: bool) -> AdvanceStart | Wait | None:
    end = facts.destination_log_end
    to = max(facts.source_log_start, first_offset)
    if facts.only_filler and end > to:
        message = (
            f"mirror topic {assignment.destination} was prepared to start at offset {end}, where the source's log"
            f" started; now it starts at {to}"
        )
        return Wait(Trouble(Reason.SOURCE_DIVERGED, message, permanent_after_retries=True))
    is_empty = facts.destination_log_start == end
    if facts.only_filler or (is_empty and end < to and (end == 0 or not begun)):
        return AdvanceStart(to, facts.filled_offsets(assignment.producer_epoch))
    return None


def _source_too_late(assignment: Assignment, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    if facts.source_log_start <= end or assignment.follows_truncation or _is_accepted(assignment, end):
        return None
    return Fail(
        Reason.SOURCE_TRUNCATED,
        f"the source starts at offset {facts.source_log_start}: its "
        + counted(
            facts.source_log_start - end,
            f"record {end} was deleted before it was copied",
            f"records {end} to {facts.source_log_start - 1} were deleted before they were copied",
        ),
        end,
    )


def _is_accepted(assignment: Assignment, end: int) -> bool:
    """Tell whether the loss of what follows `end` was accepted: nothing was copied since then.

    An end within the accepted range is that of a copy that was interrupted on its way past it.
    """
    recovery = assignment.recovery
    if recovery is None or recovery.lost_from is None or recovery.lost_until is None:
        return False
    return recovery.lost_from <= end <= recovery.lost_until


def _go_on(assignment: Assignment, acknowledged: int | None, facts: Facts) -> Copy:
    end, start = facts.destination_log_end, facts.source_log_start
    recovery = assignment.recovery
    trim_to = facts.filler_end
    if recovery is not None and recovery.trims and recovery.lost_until is not None:
        # where the source's leader has an older start again, there may be nothing to trim yet
        trim_to = start if end < start else recovery.lost_until if recovery.lost_until <= end else trim_to
    return Copy(
        end,
        max(0, (acknowledged or 0) - end) if start <= end else 0,
        facts.filled_offsets(assignment.producer_epoch),
        start if end < start else None,
        trim_to if trim_to is not None and facts.destination_log_start < trim_to else None,
    )
