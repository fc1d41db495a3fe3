"""The stored records of rights: ACLs that kmirror created, and those deferred until mirroring stops.

ACLs carry no owner. So each one is recorded here before it is created, and only recorded ones are ever removed. This
record alone, without the source, is enough to remove a topic's write protection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.cluster.protocol.acl_binding import AclBinding

#: The `topic` of the record for ACLs that are not about one topic: prefixed ACLs, and those on groups.
SHARED = "*"
#: Prefix of kmirror's own transactional ids: its locks.
OWN_TRANSACTIONAL_IDS = "kmirror-"


@dataclass(frozen=True, slots=True)
class RightsRecord:
    """The ACLs of one mirror topic, or with `topic` = SHARED those of the whole mirror.

    `made` were copied from the source; `denied` keep other clients from writing while the topic is mirrored;
    `held_back` would let a client write, and are deferred until mirroring stops. `detected_only`: why writes are only
    detected, not denied; None where they are denied.

    `blocked` are denials at the source, not here: they keep producers from writing there while the topic moves and
    afterwards. They took effect after `blocked_ms` (epoch milliseconds). At `writable_ms` a probe proved that the topic
    accepts writes here.
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
        return ("rights", self.mirror, self.topic)

    def unblocked(self) -> RightsRecord:
        """Return the record without the denial at the source."""
        return replace(self, blocked=(), blocked_ms=None, writable_ms=None)

    def __bool__(self) -> bool:
        """Return whether there is anything to store."""
        return bool(self.made or self.denied or self.held_back or self.detected_only or self.blocked or self.extra)
