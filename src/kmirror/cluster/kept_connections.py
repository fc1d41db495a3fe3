"""Whether a connection that was kept can be used again. Brokers and load balancers close idle ones."""

from __future__ import annotations

import select

from kmirror.cluster.connection import Connection

#: Set when the other side has closed the connection, even if something is left to read. Linux has it; elsewhere poll
#: reports that as a hang-up.
_CLOSED_BY_PEER = getattr(select, "POLLRDHUP", 0)


def is_usable(connection: Connection) -> bool:
    """Return whether a connection is open at both ends, and its session does not end soon."""
    if connection.socket.fileno() < 0 or connection.must_be_replaced:
        return False
    poll = select.poll()
    poll.register(connection.socket, _CLOSED_BY_PEER)
    return not poll.poll(0)
