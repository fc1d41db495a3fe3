"""What is stored of a source's clients: what they need at the destination on the day after.

Quotas carry no owner. So each one is written down here before it is set, and only what is listed is ever changed or
removed. What the source was seen to have is kept too, with the time: it may be gone when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.quota import Quota


@dataclass(frozen=True, slots=True)
class ClientsRecord:
    """Store the quotas that kmirror has set (`made`), and those and the SCRAM users that the source had, with the time.

    `quotas` and `scram_users` are None where they were not asked for.
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
        """The key under which it is stored."""
        return ("clients", self.mirror)


@dataclass(frozen=True, slots=True)
class SourceAclsRecord:
    """Store one page of the ACLs that the source had; the page 0 says when, in `time_ms`, and how many `pages`."""

    mirror: str
    page: int
    acls: tuple[AclBinding, ...] = ()
    time_ms: int = 0
    pages: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key under which it is stored."""
        return ("acls", self.mirror, self.page)
