"""`list`: all mirrors of a destination, one row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.show.cluster_view import ClusterSnapshot, Prober
from kmirror.ops.show.describe import engine_has_ended, read_rows
from kmirror.ops.show.rows import mirror_row, source_trouble
from kmirror.ops.show.tables import MirrorRow, PartitionRow
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State


def list_mirrors(destination: Destination) -> tuple[MirrorRow, ...]:
    """Return one row per mirror, by name. Works with the sources down (it waits 3 s for them) and without engines.

    Raises:
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    topics = [topic for mirror in state.mirrors for topic in state.topics(mirror.name)]
    with Prober(destination) as prober:
        rows, sources = read_rows(prober, state, topics, [m for m in state.mirrors if not state.topics(m.name)])
    return mirror_rows(state, state.mirrors, rows, sources)


def mirror_rows(
    state: State, mirrors: Iterable[MirrorRecord], rows: Iterable[PartitionRow], sources: Mapping[str, ClusterSnapshot]
) -> tuple[MirrorRow, ...]:
    """Sum up mirrors from the rows of all their partitions and the snapshots of their sources."""
    by_mirror: defaultdict[str, list[PartitionRow]] = defaultdict(list)
    for row in rows:
        by_mirror[row.mirror].append(row)
    return tuple(
        mirror_row(
            state,
            mirror,
            by_mirror[mirror.name],
            source_trouble(sources.get(mirror.name)),
            now_ms(),
            engine_has_ended=engine_has_ended(state, mirror.name),
        )
        for mirror in mirrors
    )
