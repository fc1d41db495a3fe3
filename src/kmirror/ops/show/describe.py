"""`describe`: the present state of every mirror partition, one row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.selection import select_stored_topics
from kmirror.ops.base.upstream import by_reason, unknown_loop
from kmirror.ops.show.cluster_view import ClusterSnapshot, Prober
from kmirror.ops.show.open_transactions import (
    SHOWN_AFTER_MS,
    is_blocked_by_transaction,
    open_transactions,
    with_transaction,
)
from kmirror.ops.show.rows import partition_rows
from kmirror.ops.show.tables import PartitionRow
from kmirror.settings.patterns import TopicSelector
from kmirror.state.lease import has_ended
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State, unreadable_error


def describe(
    destination: Destination,
    mirror: str | None = None,
    topics: TopicSelector | None = None,
    *,
    failed: bool = False,
    transactions_after_ms: int = SHOWN_AFTER_MS,
    prober: Prober | None = None,
) -> tuple[PartitionRow, ...]:
    """Return the rows sorted by mirror, topic, partition; `topics` selects destination names, `failed` FAILED ones.

    Works with the source down (it waits 3 s for it), without its secrets, and with no engine. An open transaction older
    than `transactions_after_ms` that blocks a copy is named. Repeated calls share a `prober`.

    Raises:
        RefusedError: no such mirror, or a plain name among `topics` is no topic of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    chosen = select_stored_topics(state, mirror, topics)
    with nullcontext(prober) if prober is not None else Prober(destination) as used:
        rows, _ = read_rows(used, state, chosen, ())
        if failed:
            return tuple(row for row in rows if row.failed)
        return tuple(with_open_transactions(used, state, rows, transactions_after_ms))


def unreadable_notes(destination: Destination, mirror: str | None = None) -> tuple[str, ...]:
    """Return a sentence for each record of a mirror, or of any, that is not shown because a newer kmirror wrote it."""
    return tuple(unreadable_error(record).message for record in destination.state().unreadable(mirror))


def upstream_notes(
    destination: Destination, mirror: str | None = None, topics: TopicSelector | None = None
) -> list[str]:
    """Return a sentence for each reason why a loop of some of these topics would not have been noticed."""
    chosen = select_stored_topics(destination.state(), mirror, topics)
    living = [one for one in chosen if one.desired is not DesiredState.STOPPED]
    unknown = {one.topic: one.upstream_unknown for one in living if one.upstream_unknown is not None}
    return [unknown_loop(why, found) for why, found in by_reason(unknown).items()]


def with_open_transactions(
    prober: Prober, state: State, rows: Sequence[PartitionRow], shown_after_ms: int = SHOWN_AFTER_MS
) -> list[PartitionRow]:
    """Return the rows, naming each open transaction that has blocked a copy for long."""
    held: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for row in rows:
        if is_blocked_by_transaction(row):
            held[row.mirror].append(TopicPartition(row.source_topic, row.partition))
    mirrors = [record for name in held if (record := state.mirror(name)) is not None]
    found = prober.ask_sources([(record, partial(open_transactions, held[record.name])) for record in mirrors])
    sources = {record.name: record.source for record in mirrors}
    shown = []
    for row in rows:
        opened = found.get(row.mirror, {}).get(TopicPartition(row.source_topic, row.partition))
        if opened is None or not is_blocked_by_transaction(row):
            shown.append(row)
        else:
            shown.append(with_transaction(row, opened, sources[row.mirror], now_ms(), shown_after_ms))
    return shown


def engine_has_ended(state: State, mirror: str) -> bool | None:
    """Return whether the process of a mirror's last engine is gone; None if it is not on this machine."""
    engine = state.engine(mirror)
    return None if engine is None else has_ended(engine)


def read_rows(
    prober: Prober, state: State, topics: Iterable[TopicRecord], mirrors: Iterable[MirrorRecord]
) -> tuple[list[PartitionRow], dict[str, ClusterSnapshot]]:
    """Return the current rows of these topics, and the snapshot of each source by mirror.

    The sources of `mirrors` are read even if they have none of these topics; a source whose topics are all stopped is
    not.
    """
    by_mirror: defaultdict[str, list[TopicRecord]] = defaultdict(list)
    for topic in topics:
        by_mirror[topic.mirror].append(topic)
    wanted: dict[str, tuple[MirrorRecord, list[str]]] = {mirror.name: (mirror, []) for mirror in mirrors}
    for name, owned in by_mirror.items():
        record = state.mirror(name)
        living = [topic.source_topic for topic in owned if topic.desired is not DesiredState.STOPPED]
        if record is not None and living:
            wanted[name] = (record, living)
    every = [topic for owned in by_mirror.values() for topic in owned]
    archives = [topic.rebuild.archive for topic in every if topic.rebuild is not None]
    here, there = prober.read([*(topic.topic for topic in every), *archives], wanted.values())
    rows: list[PartitionRow] = []
    for name in sorted(by_mirror):
        record = state.mirror(name)
        if record is not None:
            ended = engine_has_ended(state, name)
            seen = there.get(name)
            rows += partition_rows(state, record, by_mirror[name], here, seen, now_ms(), engine_has_ended=ended)
    return rows, there
