"""Whether a Spark worker has what a mirror's logins need: files and variables are never shipped to it.

This module runs in workers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from kmirror.cluster.security.local_needs import lacking_here
from kmirror.errors import Reason, RefusedError


@dataclass(frozen=True, slots=True)
class Logins:
    """The client properties of a mirror's clusters."""

    mirror: str
    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)


def require_logins(logins: Logins, attempt: int) -> None:
    """Refuse a machine that lacks what a lane of the mirror needs to log in to both clusters.

    Raises:
        RefusedError: reason SECRET_UNRESOLVED; names the machine and all that is missing.
    """
    for side, properties in (("source", logins.source), ("destination", logins.destination)):
        if lacking := lacking_here(properties):
            raise RefusedError(
                f"Spark worker {socket.gethostname()} cannot log in to the {side} of {logins.mirror}: "
                f"{'; '.join(lacking)}",
                "provide it on every worker, under the same name and readable by the workers' user; "
                "only kmirror's code and the client properties are sent there",
                Reason.SECRET_UNRESOLVED,
            )
