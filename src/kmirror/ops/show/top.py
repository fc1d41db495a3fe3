"""`top`: one look at all mirrors of a destination, or at one."""

from __future__ import annotations

from kmirror.ops.context import Destination, known_mirror
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import look_at, unread, with_open_transactions
from kmirror.ops.show.listing import mirror_rows
from kmirror.ops.show.topics import Picture, topic_rows
from kmirror.ops.show.totals import totals


def look(destination: Destination, prober: Prober, mirror: str | None = None) -> Picture:
    """Look at one mirror, or at all; sources that do not answer are waited for 3 s.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    if mirror is not None:
        known_mirror(state, mirror)
    mirrors = [one for one in state.mirrors if mirror in (None, one.name)]
    topics = [topic for record in mirrors for topic in state.topics(record.name)]
    found, sources = look_at(prober, state, topics, [one for one in mirrors if not state.topics(one.name)])
    rows = with_open_transactions(prober, state, found)
    return Picture(
        mirror_rows(state, mirrors, rows, sources), tuple(topic_rows(rows)), totals(rows), unread(destination, mirror)
    )
