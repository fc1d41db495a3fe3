"""What a partition is doing, and how its next batch may go out."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Name what a partition is doing."""

    INSPECTING = "inspecting"
    COPYING = "copying"
    DRAINING = "draining"
    WAITING = "waiting"
    FAILED = "failed"


class Permission(Enum):
    """Say how a batch may go out.

    Brokers delay what lies behind a throttled request; a batch that no memory guards must not lie there.
    """

    #: Behind others and before others, on one connection.
    SHARED = "shared"
    #: With nothing else on its connection that is unanswered.
    ALONE = "alone"


#: Members of enumerations are looked up slowly (a tenth of a microsecond); these are for what is done for each batch.
COPYING, DRAINING, FAILED = Status.COPYING, Status.DRAINING, Status.FAILED
ALONE, SHARED = Permission.ALONE, Permission.SHARED
