"""What is stored of groups: the offsets that kmirror has set, which tells them from a local consumer's.

For each partition: the offsets that kmirror set and that the destination may still have, newest first. They are
written before they are committed: after a crash in between the previous one is there, which is kmirror's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: What the destination may have: what was set last, and what was there before.
KEPT_OFFSETS = 3


class GroupReason(StrEnum):
    """Name why a group's offset is not set at the destination, for a while or until someone acts."""

    HAS_MEMBERS = "HAS_MEMBERS"
    COMMITTED_HERE = "COMMITTED_HERE"
    OTHER_TYPE = "OTHER_TYPE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    SHARE_GROUPS_UNSUPPORTED = "SHARE_GROUPS_UNSUPPORTED"
    REFUSED = "REFUSED"
    SYNC_DISABLED = "SYNC_DISABLED"
    STOPPED = "STOPPED"
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    PAUSED_BY_OPERATOR = "PAUSED_BY_OPERATOR"
    SOURCE_TOPIC_RECREATED = "SOURCE_TOPIC_RECREATED"
    PARTITION_FAILED = "PARTITION_FAILED"
    NOT_ALIGNED = "NOT_ALIGNED"
    UNKNOWN_NOW = "UNKNOWN_NOW"


#: Those that do not pass by themselves: they are stored and reported.
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
    """Store one group of the source: by destination topic and partition the offsets that are kmirror's.

    `time_ms` is when they or `skipped` last changed. `kind` is `consumer` or `share`.
    """

    mirror: str
    group: str
    destination_group: str
    kind: str
    time_ms: int
    offsets: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    skipped: GroupReason | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("group", self.mirror, self.group)

    def ours(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the offsets that are kmirror's, the one set last first; none where it has set none."""
        return self.offsets.get(topic, {}).get(partition, ())


@dataclass(frozen=True, slots=True)
class GroupsRecord:
    """Store when a mirror's groups were last checked, all of them; written about once a minute."""

    mirror: str
    time_ms: int
    groups: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("groups", self.mirror)
