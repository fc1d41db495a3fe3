"""A topic's state, from the states of its partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, StrEnum, auto

from kmirror.errors import LINK_REFUSED, NOT_COPYING, KmirrorError, Reason, UsageError
from kmirror.state.records import PENDING_PROMOTE, DesiredState, PartitionRecord, PartitionState, TopicRecord


class TopicState(StrEnum):
    """The state of a whole mirror topic."""

    PENDING_MIRROR = "PENDING_MIRROR"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    PENDING_STOPPED = "PENDING_STOPPED"
    STOPPED = "STOPPED"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    LINK_FAILED = "LINK_FAILED"
    FAILED = "FAILED"


class SourceTrouble(Enum):
    """What trouble with a source means for its mirror."""

    NONE = auto()
    #: It cannot be queried from here, because its secrets are elsewhere. The engine may still reach it.
    NOT_ASKED = auto()
    SILENT = auto()
    REFUSED = auto()


def kind_of(trouble: KmirrorError | None) -> SourceTrouble:
    """Return the kind of trouble that the source as a whole has."""
    if trouble is None:
        return SourceTrouble.NONE
    if trouble.reason is Reason.SECRET_UNRESOLVED or isinstance(trouble, UsageError):
        return SourceTrouble.NOT_ASKED
    if trouble.reason in LINK_REFUSED | {Reason.NOT_AUTHORIZED}:
        return SourceTrouble.REFUSED
    return SourceTrouble.SILENT


def link_trouble(reasons: Iterable[Reason | None], seen: SourceTrouble) -> SourceTrouble:
    """Return what is wrong with a topic's link, by its source's trouble and by the reasons of its partitions."""
    found = set(reasons)
    if seen is SourceTrouble.REFUSED or found & LINK_REFUSED:
        return SourceTrouble.REFUSED
    return SourceTrouble.SILENT if found == {Reason.SOURCE_UNREACHABLE} else seen


def topic_state_of(
    topic: TopicRecord,
    partitions: Sequence[tuple[PartitionState, Reason | None]],
    records: Mapping[int, PartitionRecord],
    seen: SourceTrouble,
) -> TopicState:
    """Derive a topic's state from those of its partitions, in order: the first rule that applies decides."""
    states = {state for state, _ in partitions}
    if states == {PartitionState.STOPPED}:
        return TopicState.STOPPED
    if PartitionState.FAILED in states:
        return TopicState.FAILED
    if topic.pending_operation == PENDING_PROMOTE:
        return TopicState.PENDING_STOPPED
    if topic.desired is DesiredState.PAUSED:
        return TopicState.PAUSED
    trouble = link_trouble((reason for _, reason in partitions), seen)
    if trouble is SourceTrouble.SILENT:
        return TopicState.SOURCE_UNAVAILABLE
    if trouble is SourceTrouble.REFUSED:
        return TopicState.LINK_FAILED
    if topic.rebuild is not None:
        return TopicState.PENDING_MIRROR
    for partition, (state, _) in enumerate(partitions):
        record = records.get(partition)
        aligned_before = record is not None and (record.aligned or record.begun or record.initial_copy_complete)
        if state is PartitionState.LOG_ALIGNMENT and not aligned_before:
            return TopicState.PENDING_MIRROR
    # nothing copies: the link is broken at this end
    return TopicState.LINK_FAILED if any(reason in NOT_COPYING for _, reason in partitions) else TopicState.ACTIVE
