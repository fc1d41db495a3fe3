"""What one partition needs besides its batches: gaps filled, its log trimmed, the end of its source probed. No I/O.

Events in, permitted actions out, as in `partition_copy`, whose transitions they use.
"""

from __future__ import annotations

from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches, ReadUpTo, Silence, silent_text
from kmirror.engine.histories.judge import Fail, Trouble
from kmirror.engine.lane.partition.intake import Gap
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason
from kmirror.words import counted

# -- gaps --------------------------------------------------------------------------------------------------------------


def has_gap(copy: PartitionCopy) -> bool:
    """Return True if there is a gap at the head of the queue, whether or not it can be filled now."""
    return copy.status is Status.COPYING and bool(copy.queue) and isinstance(copy.queue[0], Gap)


def gap_to_fill(copy: PartitionCopy) -> Gap | None:
    """Return the gap at the head of the queue if it can be filled now."""
    if not copy.queue or copy.status is not Status.COPYING or copy.in_flight or copy.fill.is_under_way:
        return None
    gap = copy.queue[0]
    if not isinstance(gap, Gap):
        return None
    if copy.memory.may_still_arrive:
        # a batch of ours may have arrived since, or may yet: the log may end elsewhere by now, or soon
        copy.hold(copy.memory.settle_until)
        return None
    return gap


def next_fill_step(copy: PartitionCopy) -> WriteMarkers | ReadLeader | None:
    """Return the next request for the gap at the head of the queue, if any; call `fill.sent` when it is sent."""
    gap = gap_to_fill(copy)
    return copy.fill.next_step(gap) if gap is not None else None


def fill_answered(copy: PartitionCopy, code: int, now: float, now_ms: int) -> None:
    """Take the response to a request for markers."""
    copy.fill.ended()
    if copy.status is Status.COPYING:
        if not code:
            copy.memory.kept_by(now_ms)
        copy.follow_up(copy.fill.answered(code), now)
    copy.advance(now)


def log_end_seen(copy: PartitionCopy, code: int, log_end: int | None, now: float) -> None:
    """Take the response to a ListOffsets request for the log end."""
    copy.fill.ended()
    if copy.status is Status.COPYING:
        copy.follow_up(copy.fill.log_end_seen(code, log_end), now)
    copy.advance(now)


def filled_by_transactions(copy: PartitionCopy, count: int, log_end: int | None, now: float) -> None:
    """Note that transactions filled the first `count` offsets of the gap, and where the log ended after that.

    The count alone proves nothing: a coordinator that got no answer from a leader writes a marker twice.
    """
    copy.fill.ended()
    if has_gap(copy) and log_end != copy.queue[0].base_offset + count:
        what = f"filling {copy.assignment.destination}: {counted(count, 'offset')} from {copy.queue[0].base_offset} on"
        end = "could not be looked up" if log_end is None else f"is {log_end}"
        copy.interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"{what} were filled, then the log end {end}"), now)
    elif has_gap(copy):
        gap = copy.fill.filled_first(count)
        if gap is not None:
            copy.progress.filled(gap)
        else:
            copy.progress.filled_up_to(copy.queue[0].base_offset, count)
        copy.made_progress()
    copy.advance(now)


def fill_uncertain(copy: PartitionCopy, trouble: Trouble, now: float) -> None:
    """Note that nothing is in flight, but it is unknown how many offsets were filled: inspect the log again."""
    copy.interrupted(trouble, now)
    copy.fill.ended()
    copy.advance(now)


# -- log start ---------------------------------------------------------------------------------------------------------


def trim_due(copy: PartitionCopy) -> int | None:
    """Return the offset to trim the log to now; None if it need not be trimmed or has not got so far."""
    to, end = copy.log_start.target, copy.progress.acknowledged
    is_idle = copy.status is Status.COPYING and not copy.queue and not copy.is_busy
    return to if to is not None and end is not None and end >= to and is_idle else None


def trimmed(copy: PartitionCopy, trouble: Trouble | None, now: float) -> None:
    """Take the result of the trim; inspect the log again in any case."""
    copy.log_start.trim_ended()
    if copy.status is not Status.COPYING:
        return
    if trouble:
        copy.interrupt(trouble, now)
        return
    copy.log_start.trimmed()
    copy.log(f"the log now starts at {copy.log_start.aligned_to}")
    # nothing is in flight; otherwise the next inspection would have to wait for it
    copy.reinspect(now)


# -- the end of the source's log ---------------------------------------------------------------------------------------


def seems_to_end(copy: PartitionCopy, now: float) -> bool:
    """Return True when the source must be probed: it returns nothing although its last stable offset is higher.

    After a crash a log may end with an empty segment, offsets that hold nothing; or the broker does not return what it
    has. Call this periodically: an incremental fetch session does not mention a partition without new data.
    """
    is_copying = copy.status is Status.COPYING and not copy.is_to_be_trimmed
    is_waiting = is_copying and not copy.queue and not copy.in_flight
    if not is_waiting or copy.blocked_by or copy.caught_up or copy.source.is_deferred:
        copy.source.brought_something()
        return False
    return copy.source.is_to_be_probed(now)


def log_end_probed(copy: PartitionCopy, offset: int, found: ReadUpTo | None, now: float, now_ms: int) -> None:
    """Take what a read from `offset` on by itself has proved; None if it failed."""
    source, partition = copy.source, copy.assignment.source
    since = source.nothing_since
    if since is None or offset != copy.intake.next_offset or copy.status is not Status.COPYING:
        return
    source.probed(now)
    if isinstance(found, Silence) and found.problem is not None:
        message = f"{partition} cannot be mirrored past offset {offset}: {found.problem}"
        copy.fail(Fail(Reason.CORRUPT_BATCH, message, offset), now)
    elif isinstance(found, Silence):
        copy.log(f"the source is silent below {found.until}: {found.why}")
        message = silent_text(partition, offset, found.until, found.why, now_ms - int(1000 * (now - since)))
        source.fell_silent(Trouble(Reason.SOURCE_SILENT, message))
    elif isinstance(found, NoBatches):
        copy.log(f"the source's log has nothing more below {found.until}")
        copy.intake.take_in_end_gap(found.until)
        source.brought_something()
    elif isinstance(found, Batches) and source.silence is None:
        source.brought_something()
