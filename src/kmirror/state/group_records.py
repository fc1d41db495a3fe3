"""The stored records of groups: the offsets that kmirror committed, to tell them from a local consumer's.

For each partition: the offsets that kmirror committed and that the destination may still have, newest first. They are
stored before they are committed: after a crash in between, the destination has the previous one, also kmirror's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Offsets kept for a partition: the one committed last, and those before it that the destination may still have.
KEPT_OFFSETS = 3


class GroupReason(StrEnum):
    """Why a group's offset is not committed at the destination, for a while or until an operator acts.

    With METADATA_REFUSED it is committed, but without the commit metadata of the source.
    """

    HAS_MEMBERS = "HAS_MEMBERS"
    COMMITTED_HERE = "COMMITTED_HERE"
    OTHER_TYPE = "OTHER_TYPE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    SHARE_GROUPS_UNSUPPORTED = "SHARE_GROUPS_UNSUPPORTED"
    REFUSED = "REFUSED"
    METADATA_REFUSED = "METADATA_REFUSED"
    SYNC_DISABLED = "SYNC_DISABLED"
    STOPPED = "STOPPED"
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    PAUSED_BY_OPERATOR = "PAUSED_BY_OPERATOR"
    SOURCE_TOPIC_RECREATED = "SOURCE_TOPIC_RECREATED"
    PARTITION_FAILED = "PARTITION_FAILED"
    NOT_ALIGNED = "NOT_ALIGNED"
    UNKNOWN_NOW = "UNKNOWN_NOW"


#: Reasons that last until an operator acts: they are stored and reported.
LASTING_REASONS = frozenset(
    {
        GroupReason.HAS_MEMBERS,
        GroupReason.COMMITTED_HERE,
        GroupReason.OTHER_TYPE,
        GroupReason.NOT_AUTHORIZED,
        GroupReason.SHARE_GROUPS_UNSUPPORTED,
        GroupReason.REFUSED,
    }
)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group of the source: the offsets that kmirror committed, by destination topic and partition.

    `time_ms` is when they or `skipped` last changed. `kind` is `consumer` or `share`. `absent` are partitions, by
    topic, for which the source does not have an offset, or has not had one since the topic was added. `detail` is what
    the brokers refuse, with the limit's name and value.
    """

    mirror: str
    group: str
    destination_group: str
    kind: str
    time_ms: int
    offsets: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    skipped: GroupReason | None = None
    absent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    detail: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("group", self.mirror, self.group)

    def ours(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the offsets that kmirror committed, newest first."""
        return self.offsets.get(topic, {}).get(partition, ())


#: How many groups a record names.
MOST_UNREADABLE = 100


@dataclass(frozen=True, slots=True)
class GroupsRecord:
    """When all groups of a mirror were last checked; written about once a minute.

    `unreadable` are source groups whose offsets could not be read or committed then, sorted, the first
    `MOST_UNREADABLE` of them, and `unreadable_count` is their number.
    """

    mirror: str
    time_ms: int
    groups: int
    unreadable: tuple[str, ...] = ()
    unreadable_count: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("groups", self.mirror)

    def may_lack(self, group: str) -> bool:
        """Return whether a source group is one of the unreadable: after the last of too many names, any may be."""
        is_cut = self.unreadable_count > len(self.unreadable)
        return group in self.unreadable or (is_cut and group > self.unreadable[-1])
