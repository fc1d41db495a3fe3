"""The stored records of a source's clients: what they need at the destination after a failover.

Quotas carry no owner. So each one is recorded here before it is set, and only recorded ones are ever changed or
removed. What the source last had is kept too, with the time: the source may be gone when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.quota import Quota


@dataclass(frozen=True, slots=True)
class ClientsRecord:
    """The quotas that kmirror has set (`made`), and the quotas and SCRAM users that the source had, with the time.

    `quotas` and `scram_users` are None if the source was not asked for them.
    """

    mirror: str
    made: tuple[Quota, ...] = ()
    quotas: tuple[Quota, ...] | None = None
    quotas_ms: int | None = None
    scram_users: tuple[str, ...] | None = None
    scram_users_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("clients", self.mirror)


@dataclass(frozen=True, slots=True)
class SourceAclsRecord:
    """One page of the ACLs that the source had; page 0 holds their time (`time_ms`) and the number of `pages`."""

    mirror: str
    page: int
    acls: tuple[AclBinding, ...] = ()
    time_ms: int = 0
    pages: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("acls", self.mirror, self.page)
