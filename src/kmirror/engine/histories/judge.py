"""Judge two logs: may the copy continue, and from where? Facts in, verdict out; no I/O, no clock.

Facts are what an inspection found about one partition: topic ids, where both logs start and end, the state of our
producer at the destination's leader, and how the tails of both logs compare (`tails`). The verdict is one of:

* `Copy(offset)`: both logs have one history up to `offset`, the destination's log end; continue there, or after an
  accepted loss;
* `AdvanceStart(to)`: the destination has no source records yet, and its log must start at `to`: fill it up to there,
  then trim it;
* `Wait(trouble)`: not everything is known yet, so nothing is done; inspect again;
* `Fail(reason, offset)`: the logs do not fit. Nothing is repaired here.

Rules are tried in this order and the first that fits decides; identity comes before offsets, because offsets of another
topic mean nothing, and a failed lookup comes before everything.

1. a lookup failed → Wait
2. the topic id of source or destination is not the known one → Fail
3. another writer used a higher epoch of our producer id → Fail FENCED
4. the tails differ → Fail SOURCE_DIVERGED (we wrote what differs) or DESTINATION_WRITTEN (another writer did)
5. the source ends before the destination → Fail SOURCE_DIVERGED, or DESTINATION_WRITTEN if rule 7 fits too
6. the source has records below the destination's end that it does not expose yet, so they were not compared → Wait
7. the destination ends with records of another writer, and nothing of either log could be compared
   → Fail DESTINATION_WRITTEN
8. the destination lost records of ours, and what remains proves nothing → Fail DESTINATION_TRUNCATED, unless this loss
   was accepted
9. the destination begins with filler that ends above its target: the source now starts lower than before. A new
   leader whose retention lags will catch up; anything else would skip or delete existing records → Wait, as long as a
   failure is retried
10. the destination has only filler, or is empty, and must start after its end → AdvanceStart. If filler ends exactly
    there → AdvanceStart too: the filler must still be trimmed. If source records were there before, only a log that
    starts at 0 counts as filler, which an unclean election brought back
11. the source starts after the destination's end → Fail SOURCE_TRUNCATED, unless this or any such loss was accepted
12. else → Copy; filler at the start of the destination, back after it was trimmed, is trimmed again

That nothing could be compared is no failure by itself (rule 12): markers, aborted transactions, compaction, and a log
that one side has emptied all lead to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.cluster.protocol.produce import NO_LIMITS, AppendLimits, ProducerState
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.fork import Fork
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.words import counted


class TailMatch(Enum):
    """How the destination's last records compare with the source's at the same offsets."""

    SAME = "same"
    DIFFERENT = "different"
    #: Nothing to compare: no offset was found at which both show a record or contradict each other.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ForeignWriters:
    """The records of a mirror partition from one offset on.

    `first_producer_id` wrote the first records there, None if there are none. `records` counts those of other writers
    than the mirror, the first of which is `producer_id`; it is a lower bound if `is_complete` is false.
    """

    first_producer_id: int | None = None
    records: int = 0
    producer_id: int | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failed lookup.

    `permanent_after_retries`: the partition is FAILED if it lasts for retry.timeout.ms; `is_proved`: at once.
    """

    reason: Reason
    message: str
    permanent_after_retries: bool = False
    is_proved: bool = False


class SourceMark(NamedTuple):
    """What is known of the source's log, in one leader epoch, from which a copy was made.

    Its leader showed `high_watermark`: what its cleaner had removed, records below that supersede. It agreed with the
    copy from `compared_from` up to `copied_to`, where the copy ends.
    """

    leader_epoch: int
    high_watermark: int
    compared_from: int
    copied_to: int
    #: The last leader epoch with records before this one, and where it ends; None if unknown.
    epoch_before: tuple[int, int] | None = None

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record below the high watermark; only its leader knows one without records."""
        before = self.epoch_before
        return before[0] if before is not None and self.high_watermark <= before[1] else self.leader_epoch


@dataclass(frozen=True, slots=True)
class Facts:
    """What an inspection found about one partition. With `trouble`, no other field is valid."""

    trouble: Trouble | None = None
    source_topic_id: bytes | None = None
    destination_topic_id: bytes | None = None
    source_leader: tuple[int, int] = (-1, -1)
    #: The last leader epoch with records before the source leader's, and where it ends; None if unknown.
    epoch_before: tuple[int, int] | None = None
    destination_leader: tuple[int, int] = (-1, -1)
    source_log_start: int = 0
    source_log_end: int = 0
    last_stable_offset: int = 0
    high_watermark: int = 0
    destination_log_start: int = 0
    destination_log_end: int = 0
    #: The state of our producer at the destination's leader.
    producer: ProducerState | None = None
    tail: TailMatch = TailMatch.NOTHING
    #: Epoch of the source batch with the offset before the destination's end; None without one.
    tail_epoch: int | None = None
    #: What its leader's settings mean for appends.
    destination_limits: AppendLimits = NO_LIMITS
    #: Who wrote the destination's batch that differs, or else its last one; None without batches.
    tail_producer_id: int | None = None
    #: The lowest offset that was found to differ.
    differs_at: int | None = None
    #: From here on nothing was found to differ.
    compared_from: int = 0
    #: The source's log is proved to begin with what it had at the mark of an earlier leader epoch.
    is_still: bool = False
    #: The destination has nothing but our filler.
    only_filler: bool = False
    #: The destination ends with records of another writer, and nothing was found to compare.
    unproven: bool = False
    #: The destination begins with filler again, up to here: its broker died before it checkpointed the log start.
    filler_end: int | None = None
    #: The exact fork of the two logs, and what follows it; None if they are not known to fork.
    fork: Fork | None = None
    foreign_writers: ForeignWriters | None = None

    @property
    def unused_coordinator_epoch(self) -> int:
        """The lowest coordinator epoch above all in markers of ours that the destination's leader has seen."""
        return self.producer.coordinator_epoch + 1 if self.producer else 0

    def filled_offsets(self, producer_epoch: int) -> int:
        """Return what to subtract from an offset to get its sequence number, modulo 2^31: the offsets that have none.

        Markers take offsets, but no sequence numbers. A producer that the leader does not know may begin with any
        sequence number; one with a new epoch must begin with 0.
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
    #: The destination lost this many of our records, which are copied again; usually 0.
    copied_again: int = 0
    filled_offsets: int = 0
    #: The source has lost everything between `offset` and here, which is skipped. None: no loss.
    skip_to: int | None = None
    #: Where the destination's log must start, after such a loss or filler, once it gets so far; None: no change.
    trim_to: int | None = None


@dataclass(frozen=True, slots=True)
class AdvanceStart:
    """Make the destination's log start at `to`, then inspect again; sequence numbers as in `Copy`."""

    to: int
    filled_offsets: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Inspect again later; `trouble` says why."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail this partition, which cannot continue from `offset`."""

    reason: Reason
    message: str
    offset: int


Verdict = Copy | AdvanceStart | Wait | Fail


def judge(
    assignment: Assignment, acknowledged: int | None, facts: Facts, *, first_offset: int = 0, begun: bool = False
) -> Verdict:
    """Decide how a partition continues.

    `acknowledged` is the end of what this lane knows to be appended, None before its first inspection. A mirror that
    must begin above the source's log start begins at `first_offset`. `begun`: source records were in the destination
    before, so an empty one is not new.
    """
    if facts.trouble:
        return Wait(facts.trouble)
    if begun and facts.only_filler and not _is_back_in_filler(acknowledged, facts, first_offset):
        # from 0 on it is filler that must be trimmed; in a log that starts later they are copied records
        filled = facts.destination_log_end if facts.destination_log_start == 0 else None
        facts = replace(facts, only_filler=False, filler_end=filled)
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
        or _continue(assignment, acknowledged, facts)
    )


def _wrong_identity(assignment: Assignment, facts: Facts) -> Fail | None:
    source = assignment.source_topic_id, facts.source_topic_id
    destination = assignment.destination_topic_id, facts.destination_topic_id
    for (known, now), topic, reason in (
        (source, f"source topic {assignment.source_topic}", Reason.SOURCE_TOPIC_RECREATED),
        (destination, f"mirror topic {assignment.topic}", Reason.DESTINATION_TOPIC_DELETED),
    ):
        if known and now and (found := format_topic_id(now)) not in (None, known):
            message = f"{topic} was deleted and created again: its id was {known} and is {found}"
            if reason is Reason.SOURCE_TOPIC_RECREATED:
                now_has = f"beginning offset {facts.source_log_start}, end offset {facts.high_watermark}"
                gone = counted(facts.destination_log_end, "offset")
                message = (
                    f"source topic reset detected at position {facts.destination_log_end}: {message}; it has {now_has};"
                    f" the {gone} copied before {'is' if facts.destination_log_end == 1 else 'are'} of the old one"
                )
            return Fail(reason, message, facts.destination_log_end)
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
    """Return True if another client wrote what differs."""
    if facts.foreign_writers is not None:
        first = facts.foreign_writers.first_producer_id
        return first is not None and first != assignment.producer_id
    return facts.tail_producer_id is not None and facts.tail_producer_id != assignment.producer_id


def _foreign_write(assignment: Assignment, facts: Facts, at: int | None, why: str) -> Fail:
    """Return the failure that another client wrote to the mirror: where, how much, and who."""
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
    if facts.tail is not TailMatch.DIFFERENT:
        return None
    end, fork = facts.destination_log_end, facts.fork
    at = fork.offset if fork else facts.differs_at
    if _is_foreign(assignment, facts):
        if at is not None and facts.source_log_end <= at:
            return _foreign_write(assignment, facts, at, _ends_differ(facts))
        return _foreign_write(assignment, facts, at, f"it differs from {assignment.source} there")
    if fork is None or at is None:
        message = f"the history of {assignment.source} was rewritten: at offset {at} it differs from what was copied"
        return Fail(Reason.SOURCE_DIVERGED, message, end)
    proved = "" if fork.agreed_at is not None else "; below that, nothing remains that both sides have"
    return Fail(
        Reason.SOURCE_DIVERGED,
        f"the history of {assignment.source} was rewritten: from offset {at} on it differs from what was copied, "
        f"{counted(end - at, 'offset')} up to offset {end - 1}{proved}",
        at,
    )


def _source_too_short(assignment: Assignment, facts: Facts) -> Fail | None:
    end, source_end = facts.destination_log_end, facts.source_log_end
    if source_end >= end:
        return None
    if facts.unproven or (facts.foreign_writers is not None and _is_foreign(assignment, facts)):
        return _foreign_write(assignment, facts, source_end, _ends_differ(facts))
    return Fail(
        Reason.SOURCE_DIVERGED,
        f"the source ends at offset {source_end}, but {end} had been copied from it: "
        f"{counted(end - source_end, 'record is', 'records are')} no longer there",
        source_end,
    )


def _hidden_tail(assignment: Assignment, facts: Facts) -> Wait | None:
    """After an election a leader may hide its last records for a while; they may differ from the copied ones."""
    end = facts.destination_log_end
    if facts.last_stable_offset < end:
        message = f"{assignment.source} does not show its records below offset {end} yet"
        return Wait(Trouble(Reason.SOURCE_UNREACHABLE, message))
    return None


def _unproven_tail(assignment: Assignment, facts: Facts) -> Fail | None:
    if is_unproven(assignment, facts):
        why = "the last records are not this mirror's, and the source has nothing to compare them with"
        return _foreign_write(assignment, facts, None, why)
    return None


def is_unproven(assignment: Assignment, facts: Facts) -> bool:
    """Return whether the destination ends with records that neither the mirror wrote nor anything proves.

    What `add` compared when it adopted the log stays proved: the source may have been compacted since.
    """
    return facts.unproven and facts.destination_log_end != assignment.compared_end


def _lost_tail(assignment: Assignment, acknowledged: int | None, facts: Facts) -> Fail | None:
    end = facts.destination_log_end
    if acknowledged is None or end >= acknowledged or facts.tail is not TailMatch.NOTHING or facts.only_filler:
        return None
    if end == 0 and facts.source_log_start == 0:
        return None  # the source still has all of it
    if _is_accepted(assignment, end):
        return None
    return Fail(
        Reason.DESTINATION_TRUNCATED,
        f"the destination lost offsets {end} to {acknowledged - 1}, "
        "and what remains cannot be compared with the source",
        end,
    )


def _is_back_in_filler(acknowledged: int | None, facts: Facts, first_offset: int) -> bool:
    """Return whether a destination that had source records has lost them all, and can be filled and copied again.

    Filler begins at 0; what is left of a log that starts later are copied records that only look like it. And what the
    source has deleted before it was copied would be skipped silently.
    """
    end, to = facts.destination_log_end, max(facts.source_log_start, first_offset)
    return facts.destination_log_start == 0 and not (acknowledged is not None and end < acknowledged < to)


def _beginning(assignment: Assignment, facts: Facts, first_offset: int, begun: bool) -> AdvanceStart | Wait | None:
    end = facts.destination_log_end
    to = max(facts.source_log_start, first_offset)
    filled = end if facts.only_filler else facts.filler_end or 0
    if filled > to:
        message = (
            f"mirror topic {assignment.destination} was prepared to start at offset {filled}, where the source's log"
            f" started; now the source starts at {to}"
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
    has = f"the source starts at offset {facts.source_log_start} and ends at {facts.high_watermark}"
    return Fail(
        Reason.SOURCE_TRUNCATED,
        f"source log truncation detected at position {end}: {has}; its "
        + counted(
            facts.source_log_start - end,
            f"offset {end} was deleted before it was copied",
            f"offsets {end} to {facts.source_log_start - 1} were deleted before they were copied",
        ),
        end,
    )


def _is_accepted(assignment: Assignment, end: int) -> bool:
    """Return True if the loss after `end` was accepted and nothing was copied since.

    An end within the accepted range is that of a copy that was interrupted while it skipped the loss.
    """
    recovery = assignment.recovery
    if recovery is None or recovery.lost_from is None or recovery.lost_until is None:
        return False
    return recovery.lost_from <= end <= recovery.lost_until


def _continue(assignment: Assignment, acknowledged: int | None, facts: Facts) -> Copy:
    end, start = facts.destination_log_end, facts.source_log_start
    recovery = assignment.recovery
    trim_to = facts.filler_end
    if recovery is not None and recovery.trims and recovery.lost_until is not None:
        # if the source's leader has an older log start again, there may be nothing to trim yet
        trim_to = start if end < start else recovery.lost_until if recovery.lost_until <= end else trim_to
    return Copy(
        end,
        max(0, (acknowledged or 0) - end) if start <= end else 0,
        facts.filled_offsets(assignment.producer_epoch),
        start if end < start else None,
        trim_to if trim_to is not None and facts.destination_log_start < trim_to else None,
    )
