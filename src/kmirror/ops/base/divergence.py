"""Decide what part of an old source's log its new primary lacks. Pure: offsets and a fork in, a divergence out.

`here` is the old source, which is to become the mirror; `there` the new primary. Both logs are known to be the same up
to `shared_end`. Evidence, the strongest first:

1. Contents: the highest offset at which both show the same record, and the lowest at which they contradict each other.
2. The last mirrored offset (LMO) stored by the new primary: everything below it was copied from here. It extends what
   contents prove (markers, and what a cleaner has removed, prove nothing by themselves), unless contents contradict it
   below, or one of the logs does not reach it: then that one has lost its tail since, and may have got other records.
3. If nothing can be compared, the LMO alone counts only where nothing is deleted because of it: when the log here ends
   at it. Otherwise everything counts as after the fork, so that it is archived.

Cutting its tail is not enough, and the topic must be recreated, if the log there starts after `shared_end`, or the log
here starts after the fork.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.columns import COUNT, END, OFFSET, TEXT, Column, Type, list_of
from kmirror.engine.histories.fork import Fork
from kmirror.words import counted


@dataclass(frozen=True, slots=True)
class Logs:
    """Where the two logs of a partition start and end, and what the new primary has stored, None if nothing.

    `differs_at` is where an earlier full comparison has found a difference; `first_offset` is where the new primary's
    copy began, as far as is known: it is not known to have had what is before.
    """

    topic_partition: TopicPartition
    here_start: int
    here_end: int
    there_start: int
    there_end: int
    last_mirrored_offset: int | None = None
    last_mirrored_epoch: int | None = None
    differs_at: int | None = None
    first_offset: int = 0


@dataclass(frozen=True, slots=True)
class Divergence:
    """How two logs diverge.

    `records` are the visible records here from `shared_end` on, `never_copied` those of them from the LMO on (None:
    unknown). `diverges`: something must be removed before the log here is the beginning of the one there; with
    `must_recreate` a cut is not enough. `notes` say what could not be proved.
    """

    logs: Logs
    shared_end: int
    records: int
    never_copied: int | None
    diverges: bool
    must_recreate: bool
    notes: tuple[str, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.logs.topic_partition

    @property
    def never_there(self) -> tuple[int, int] | None:
        """The range before `shared_end` that the new primary is not known to have had; None if there is none."""
        return _range(self.logs.here_start, min(self.logs.first_offset, self.shared_end))

    @property
    def deleted_there(self) -> tuple[int, int] | None:
        """The range before `shared_end` that the new primary had and has deleted; None if there is none."""
        begin = max(self.logs.here_start, self.logs.first_offset)
        return _range(begin, min(self.logs.there_start, self.shared_end))

    @property
    def offsets_to_copy(self) -> int:
        """How many offsets the new primary has after the shared ones."""
        return max(0, self.logs.there_end - max(self.shared_end, self.logs.there_start))

    def __str__(self) -> str:
        logs = self.logs
        at = f"{self.topic_partition}: the two logs are the same up to offset {self.shared_end}"
        if not self.diverges:
            return f"{at}, where this one ends; {counted(self.offsets_to_copy, 'offset')} to copy"
        what = f"{counted(self.records, 'record')} after it, up to {logs.here_end}"
        if self.never_copied is not None and self.never_copied != self.records:
            what += f" ({self.never_copied} of them from the last mirrored offset {logs.last_mirrored_offset} on)"
        return f"{at}; {what}" + "".join(f"; {note}" for note in self.notes)


def _range(low: int, high: int) -> tuple[int, int] | None:
    return (low, high) if low < high else None


@dataclass(frozen=True, slots=True)
class KnownFork:
    """How two logs diverge, and how much must be copied because of it; the size is None if unknown."""

    divergence: Divergence
    offsets_to_copy: int
    bytes_to_copy: int | None


_UNKEPT = "the new primary has no record of it"
FORK: tuple[Column[KnownFork], ...] = (
    Column("topic", TEXT, "the topic", lambda fork: fork.divergence.topic_partition.topic),
    Column("partition", COUNT, "the partition", lambda fork: fork.divergence.topic_partition.partition),
    Column("sharedEnd", END, "up to where the two logs are the same", lambda fork: fork.divergence.shared_end),
    Column("recordsBeyond", COUNT, "records after it in the log here", lambda fork: fork.divergence.records),
    Column(
        "neverCopied",
        COUNT.null_when("unknown"),
        "those of them at lastMirroredOffset and after",
        lambda fork: fork.divergence.never_copied,
    ),
    Column(
        "lastMirroredOffset",
        END.null_when(_UNKEPT),
        "the end of what the new primary copied from here",
        lambda fork: fork.divergence.logs.last_mirrored_offset,
    ),
    Column(
        "lastMirroredEpoch",
        Type("integer", "leader epoch").null_when(_UNKEPT),
        "the leader epoch of the last batch of that",
        lambda fork: fork.divergence.logs.last_mirrored_epoch,
    ),
    Column("logStart", OFFSET, "the start of the log here", lambda fork: fork.divergence.logs.here_start),
    Column("logEnd", END, "the end of the log here", lambda fork: fork.divergence.logs.here_end),
    Column(
        "newPrimaryLogStart",
        OFFSET,
        "the start of the new primary's log",
        lambda fork: fork.divergence.logs.there_start,
    ),
    Column("newPrimaryLogEnd", END, "the end of the new primary's log", lambda fork: fork.divergence.logs.there_end),
    Column("offsetsToCopy", COUNT, "offsets to copy from the new primary", lambda fork: fork.offsets_to_copy),
    Column("bytesToCopy", COUNT.null_when("unknown"), "their size, about", lambda fork: fork.bytes_to_copy),
    Column("notes", list_of(TEXT), "what could not be proved", lambda fork: fork.divergence.notes),
)


def shared_end(logs: Logs, fork: Fork) -> int:
    """Return the offset up to which the log here is known to be the one there."""
    seen = _seen_shared_end(logs, fork)
    return seen if logs.differs_at is None else max(logs.here_start, min(seen, logs.differs_at))


def _is_hidden(logs: Logs, fork: Fork) -> bool:
    """Return whether a full comparison found a difference that the search for the fork does not find."""
    return logs.differs_at is not None and logs.differs_at < _seen_shared_end(logs, fork)


def _seen_shared_end(logs: Logs, fork: Fork) -> int:
    lmo = logs.last_mirrored_offset
    known = None if fork.agreed_at is None else fork.agreed_at + 1
    is_trusted = lmo is not None and _is_trusted(logs, fork, lmo)
    if known is not None:
        found = max(known, lmo) if is_trusted and lmo is not None else known
    elif is_trusted and lmo is not None and logs.there_start <= logs.here_end == lmo:
        found = lmo
    else:
        found = logs.here_start
    return max(logs.here_start, min(found, logs.here_end))


def divergence(logs: Logs, fork: Fork, records: int, never_copied: int | None) -> Divergence:
    """Return how two logs diverge; `records` and `never_copied` as in `Divergence`."""
    shared = shared_end(logs, fork)
    lmo = logs.last_mirrored_offset
    known = fork.agreed_at is not None
    has_gap = logs.there_start > shared > 0
    is_stale = logs.here_start > logs.there_start and (not known if lmo is None else logs.here_start > lmo)
    is_hidden = _is_hidden(logs, fork)
    must_recreate = has_gap or is_stale or is_hidden or shared > logs.there_end
    diverges = must_recreate or fork.contradicts or logs.here_end > logs.there_end or records > 0
    if not diverges:
        shared = logs.here_end  # what follows shows nothing, and nothing contradicts it
    notes = tuple(_notes(logs, fork, has_gap=has_gap, is_stale=is_stale, diverges=diverges))
    return Divergence(logs, shared, records, never_copied, diverges, must_recreate, notes)


def divergence_of_extra_partition(logs: Logs, records: int) -> Divergence:
    """Return the divergence of a partition that the new primary does not have at all."""
    note = "the new primary has no such partition, so the topic must be recreated"
    return Divergence(logs, logs.here_start, records, None, diverges=True, must_recreate=True, notes=(note,))


def _is_trusted(logs: Logs, fork: Fork, lmo: int) -> bool:
    return lmo <= min(logs.here_end, logs.there_end) and not (fork.contradicts and fork.offset < lmo)


def _notes(logs: Logs, fork: Fork, *, has_gap: bool, is_stale: bool, diverges: bool) -> list[str]:
    lmo, notes = logs.last_mirrored_offset, []
    if lmo is not None and not _is_trusted(logs, fork, lmo):
        short = f"its log ends at {logs.there_end}" if logs.there_end < lmo else f"the log here ends at {logs.here_end}"
        at = f"they differ from offset {fork.offset} on" if fork.contradicts else short
        notes.append(f"everything up to {lmo} had been copied, but {at}: one of the two logs has lost its tail since")
    if fork.agreed_at is None and logs.here_start < logs.here_end:
        if logs.there_start >= logs.here_end:
            why = f"the new primary's log starts at {logs.there_start}"
        elif logs.here_start >= logs.there_end:
            why = f"the log here starts at {logs.here_start}"
        else:
            why = "the logs share no record"
        weight = "all records here count as after the fork" if diverges else "the last mirrored offset alone decides"
        notes.append(f"nothing can be compared: {why}; {weight}")
    if has_gap:
        notes.append(
            f"the new primary's log starts at {logs.there_start}: a truncation is not enough to continue from there"
        )
    elif is_stale:
        notes.append(f"the log here starts at {logs.here_start}, after the fork: a truncation is not enough")
    if _is_hidden(logs, fork):
        notes.append(
            f"a full comparison found a difference at offset {logs.differs_at} that looks like compaction: a"
            " truncation is not enough"
        )
    if not fork.is_exact:
        notes.append("the fork may be earlier: there are too many markers to check all")
    return notes
