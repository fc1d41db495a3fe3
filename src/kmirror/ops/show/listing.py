"""`list` and `top`: the mirrors of a destination, and what their topics come to."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.ops.base.context import Destination, known_mirror
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_status, unreadable_notes, with_open_transactions
from kmirror.state.waiting import BRIEFLY_S
from kmirror.status.mirror_status import MirrorRow
from kmirror.status.topic_status import TopicStatus, Totals, totals


def list_mirrors(destination: Destination) -> tuple[MirrorRow, ...]:
    """Return one row per mirror, by name. Works with the sources down (it waits 3 s for them) and without engines.

    Raises:
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    topics = [topic for mirror in state.mirrors for topic in state.topics(mirror.name)]
    with Prober(destination) as prober:
        found, _ = read_status(prober, state, topics, [one for one in state.mirrors if not state.topics(one.name)])
    return tuple(mirror.row for mirror in found)


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of `top` at one time; `unreadable` has a sentence for each record that cannot be read."""

    mirrors: tuple[MirrorRow, ...]
    topics: tuple[TopicStatus, ...]
    totals: Totals
    unreadable: tuple[str, ...] = ()


def read_overview(destination: Destination, prober: Prober, mirror: str | None = None) -> Overview:
    """Read one mirror, or all; waits 3 s for sources that do not answer.

    Raises:
        RefusedError: no such mirror.
        UnreachableError: the destination does not answer.
    """
    state = destination.state(BRIEFLY_S)
    if mirror is not None:
        known_mirror(state, mirror)
    mirrors = [one for one in state.mirrors if mirror in (None, one.name)]
    topics = [topic for record in mirrors for topic in state.topics(record.name)]
    read, _ = read_status(prober, state, topics, [one for one in mirrors if not state.topics(one.name)])
    found = with_open_transactions(prober, read)
    return Overview(
        tuple(one.row for one in found),
        tuple(topic for one in found for topic in one.topics),
        totals(row for one in found for row in one.partitions),
        unreadable_notes(destination, mirror),
    )
