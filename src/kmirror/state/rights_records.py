"""What is stored of rights: ACLs that kmirror made, and those deferred until mirroring stops.

ACLs carry no owner. So each one is written down here before it is created, and only what is listed is ever removed;
with this record alone, and no source, a topic's rights can be lifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.cluster.protocol.acl_binding import AclBinding

#: Stands for a topic in the record of what is not about one topic alone: prefixed ACLs, and those on groups.
SHARED = "*"
#: What kmirror's own transactional ids begin with: its locks.
OWN_TRANSACTIONAL_IDS = "kmirror-"


@dataclass(frozen=True, slots=True)
class RightsRecord:
    """Hold the ACLs of one mirror topic, or with `topic` = SHARED those of the whole mirror.

    `made` were copied from the source; `denied` keep other clients from writing while the topic is mirrored;
    `held_back` would let a client write, and are given when mirroring stops. `detected_only`: why no one is kept from
    writing, None where everyone is.

    `blocked` is at the source, not here: it keeps producers from writing there while the topic moves and after that,
    from some moment after `blocked_ms` (epoch milliseconds) on. At `writable_ms` the topic was proved to take writes
    here.
    """

    mirror: str
    topic: str
    made: tuple[AclBinding, ...] = ()
    denied: tuple[AclBinding, ...] = ()
    held_back: tuple[AclBinding, ...] = ()
    detected_only: str | None = None
    blocked: tuple[AclBinding, ...] = ()
    blocked_ms: int | None = None
    writable_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """The key under which it is stored."""
        return ("rights", self.mirror, self.topic)

    def unblocked(self) -> RightsRecord:
        """Return the record without the denial at the source."""
        return replace(self, blocked=(), blocked_ms=None, writable_ms=None)

    def __bool__(self) -> bool:
        """Tell whether there is anything to store."""
        return bool(self.made or self.denied or self.held_back or self.detected_only or self.blocked or self.extra)
