"""The status of a partition, how it is fetched, and how its next batch may be sent."""

from __future__ import annotations

from enum import Enum
from typing import Literal

#: Over which connection to a source broker a partition is fetched: with most others, with those that bring nothing for
#: long, one by one with those of which the broker does not return what it has, or over many that read ahead.
SourceRole = Literal["main", "quiet", "silent", "ahead"]


class Status(Enum):
    """What a partition is doing."""

    INSPECTING = "inspecting"
    COPYING = "copying"
    DRAINING = "draining"
    WAITING = "waiting"
    FAILED = "failed"


class Permission(Enum):
    """How a batch may be sent.

    Brokers delay requests behind a throttled one; a batch that the broker's memory does not guard must not be there.
    """

    #: With other requests in flight on its connection.
    SHARED = "shared"
    #: With no other request in flight on its connection.
    ALONE = "alone"


#: Enum member access is slow (0.1 µs); code that runs for each batch uses these.
COPYING, DRAINING, FAILED = Status.COPYING, Status.DRAINING, Status.FAILED
ALONE, SHARED = Permission.ALONE, Permission.SHARED
