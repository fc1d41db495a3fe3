"""`top`: one reading of all mirrors of a destination, or of one."""

from __future__ import annotations

from kmirror.ops.base.context import Destination, known_mirror
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_rows, unreadable_notes, with_open_transactions
from kmirror.ops.show.listing import mirror_rows
from kmirror.ops.show.topics import Overview, topic_rows
from kmirror.ops.show.totals import totals


def read_overview(destination: Destination, prober: Prober, mirror: str | None = None) -> Overview:
    """Read one mirror, or all; waits 3 s for sources that do not answer.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    if mirror is not None:
        known_mirror(state, mirror)
    mirrors = [one for one in state.mirrors if mirror in (None, one.name)]
    topics = [topic for record in mirrors for topic in state.topics(record.name)]
    found, sources = read_rows(prober, state, topics, [one for one in mirrors if not state.topics(one.name)])
    rows = with_open_transactions(prober, state, found)
    return Overview(
        mirror_rows(state, mirrors, rows, sources),
        tuple(topic_rows(rows)),
        totals(rows),
        unreadable_notes(destination, mirror),
    )
