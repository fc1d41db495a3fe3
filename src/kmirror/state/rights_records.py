"""What is remembered of rights: ACLs that kmirror made at the destination, and those held back until mirroring stops.

ACLs carry no owner. So each one is written down here before it is created, and only what stands here is ever removed;
with this record alone, and no source, a topic's rights can be lifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.cluster.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from kmirror.state.stored import Stored

#: Stands for a topic in the record of what is not about one topic alone: prefixed ACLs, and those on groups.
SHARED = "*"


@dataclass(frozen=True, slots=True)
class RightsRecord:
    """Hold the ACLs of one mirror topic, or with `topic` = SHARED those of the whole mirror.

    `made` were taken over from the source; `denied` keep everybody else from writing while the topic is mirrored;
    `held_back` would let somebody write, and are given when mirroring stops. `detected_only`: why nobody is kept from
    writing, None where everybody is.
    """

    mirror: str
    topic: str
    made: tuple[AclBinding, ...] = ()
    denied: tuple[AclBinding, ...] = ()
    held_back: tuple[AclBinding, ...] = ()
    detected_only: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """The key under which it is stored."""
        return ("rights", self.mirror, self.topic)

    def __bool__(self) -> bool:
        """Tell whether there is anything to remember."""
        return bool(self.made or self.denied or self.held_back or self.detected_only or self.extra)


def read_rights(names: tuple[str | int, ...], stored: Stored) -> RightsRecord:
    """Read a stored record. Raises one of `stored.UNREADABLE`."""
    mirror, topic = names
    made, denied, held_back = (_bindings(stored.array(name)) for name in ("made", "denied", "held_back"))
    detected_only = stored.optional_text("detected_only")
    return RightsRecord(str(mirror), str(topic), made, denied, held_back, detected_only, extra=stored.rest())


def _bindings(rows: list[Any]) -> tuple[AclBinding, ...]:
    return tuple(_binding(*row) for row in rows)


def _binding(kind: str, name: str, pattern: str, principal: str, host: str, operation: str, rule: str) -> AclBinding:
    if not all(type(text) is str for text in (name, principal, host)):
        raise ValueError(f"an ACL on {name!r} for {principal!r} from {host!r}")
    return AclBinding(
        ResourceType(kind), name, PatternType(pattern), principal, host, Operation(operation), Permission(rule)
    )
