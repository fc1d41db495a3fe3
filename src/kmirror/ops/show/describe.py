"""`describe`: the present state of every mirror partition, one row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.base.selection import select_stored_topics
from kmirror.ops.base.upstream import by_reason, unknown_loop
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.open_transactions import (
    SHOWN_AFTER_MS,
    OpenTransaction,
    is_blocked_by_transaction,
    open_transactions,
    with_transaction,
)
from kmirror.settings.patterns import TopicSelector
from kmirror.state.engine_identity import has_ended
from kmirror.state.internal_topics import hidden_note
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.state.waiting import BRIEFLY_S
from kmirror.status.engine_health import EngineHealth, engine_health
from kmirror.status.lasting_troubles import lasting_notes
from kmirror.status.mirror_status import MirrorStatus
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PartitionRow
from kmirror.status.rules import mirror_status


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
        found, _ = read_status(used, state, chosen)
        if not failed:
            found = with_open_transactions(used, found, transactions_after_ms)
        return tuple(row for mirror in found for row in mirror.partitions if row.failed or not failed)


def unreadable_notes(destination: Destination, mirror: str | None = None) -> tuple[str, ...]:
    """Return what is wrong with each record of a mirror, or of any, that a newer kmirror wrote, and what to do.

    Another one if an open transaction hides records, or hid some from what was read before.
    """
    store = destination.store
    before = store.hidden_from
    unreadable = destination.state(BRIEFLY_S).unreadable(mirror)
    hidden_from, store.hidden_from = store.hidden_from if before is None else before, None
    hidden = () if hidden_from is None else (hidden_note(hidden_from),)
    errors = map(unreadable_error, unreadable)
    return (*hidden, *(f"{error.message}; {error.hint}" for error in errors))


def topic_notes(destination: Destination, mirror: str | None = None, topics: TopicSelector | None = None) -> list[str]:
    """Return a sentence for each reason why a loop of some of these topics would not have been noticed.

    Without `topics` also one for each source topic that the filters select and that could not be added, and for what
    engines fail to do beside copying.
    """
    state = destination.state()
    chosen = select_stored_topics(state, mirror, topics)
    living = [one for one in chosen if one.desired is not DesiredState.STOPPED]
    unknown = {one.topic: one.upstream_unknown for one in living if one.upstream_unknown is not None}
    mirrors = [one for one in state.mirrors if topics is None and mirror in (None, one.name)]
    lasting = (note for one in mirrors for note in lasting_notes(state, one, now_ms()))
    return [*(unknown_loop(why, found) for why, found in by_reason(unknown).items()), *lasting]


def with_open_transactions(
    prober: Prober, mirrors: Sequence[MirrorStatus], shown_after_ms: int = SHOWN_AFTER_MS
) -> list[MirrorStatus]:
    """Return the mirrors, naming each open transaction that has blocked a copy for long."""
    held = {
        mirror.record.name: [
            TopicPartition(row.source_topic, row.partition)
            for row in mirror.partitions
            if is_blocked_by_transaction(row)
        ]
        for mirror in mirrors
    }
    records = [mirror.record for mirror in mirrors if held[mirror.record.name]]
    opened = prober.ask_sources([(record, partial(open_transactions, held[record.name])) for record in records])

    return [naming_transactions(one, opened.get(one.record.name, {}), now_ms(), shown_after_ms) for one in mirrors]


def naming_transactions(
    mirror: MirrorStatus,
    opened: Mapping[TopicPartition, OpenTransaction],
    at_ms: int,
    shown_after_ms: int = SHOWN_AFTER_MS,
) -> MirrorStatus:
    """Return the mirror, naming those of its source's open transactions that block a copy."""

    def named(row: PartitionRow) -> PartitionRow:
        found = opened.get(TopicPartition(row.source_topic, row.partition))
        if found is None or not is_blocked_by_transaction(row):
            return row
        return with_transaction(row, found, mirror.record.source, at_ms, shown_after_ms)

    return mirror.changed(named) if opened else mirror


def read_status(
    prober: Prober, state: State, topics: Iterable[TopicRecord], mirrors: Iterable[MirrorRecord] = ()
) -> tuple[list[MirrorStatus], dict[str, ClusterSnapshot]]:
    """Return the current status of the mirrors of these topics, with only these, and a snapshot of each source.

    `mirrors` are read even if they have none of these topics. A source whose topics are all stopped is not.
    """
    heard = prober.heard
    heard.take(state, now_ms())
    looked = look_at(prober, state, topics, mirrors)
    found = [
        mirror_status(
            state,
            record,
            owned,
            looked.destination,
            looked.sources.get(name),
            at_ms := now_ms(),
            health=_health_of(state, name, at_ms, heard.heard_ms(name)),
        )
        for name, (record, owned) in sorted(looked.mirrors.items())
    ]
    return found, looked.sources


@dataclass(frozen=True, slots=True)
class Looked:
    """Snapshots of a destination and, by mirror, of sources, and the mirrors that they are of, with their topics."""

    mirrors: Mapping[str, tuple[MirrorRecord, list[TopicRecord]]]
    destination: ClusterSnapshot
    sources: dict[str, ClusterSnapshot]


def look_at(
    prober: Prober, state: State, topics: Iterable[TopicRecord], mirrors: Iterable[MirrorRecord] = ()
) -> Looked:
    """Read where the logs of these topics begin and end now, at both clusters; the mirrors are as in `read_status`.

    Raises:
        UnreachableError: the destination does not answer.
    """
    by_mirror: defaultdict[str, list[TopicRecord]] = defaultdict(list)
    for topic in topics:
        by_mirror[topic.mirror].append(topic)
    wanted: dict[str, tuple[MirrorRecord, list[str]]] = {mirror.name: (mirror, []) for mirror in mirrors}
    shown = {name: record for name, (record, _) in wanted.items()}
    for name, owned in by_mirror.items():
        record = state.mirror(name)
        living = [topic.source_topic for topic in owned if topic.desired is not DesiredState.STOPPED]
        if record is not None:
            shown[name] = record
            if living:
                wanted[name] = (record, living)
    every = [topic for owned in by_mirror.values() for topic in owned]
    archives = [topic.rebuild.archive for topic in every if topic.rebuild is not None]
    here, there = prober.read([*(topic.topic for topic in every), *archives], wanted.values())
    return Looked({name: (record, by_mirror[name]) for name, record in shown.items()}, here, there)


def _health_of(state: State, mirror: str, at_ms: int, heard_ms: int | None) -> EngineHealth:
    """Return the health of a mirror's engine; one of this machine is gone if its process is."""
    engine = state.engine(mirror)
    ended = None if engine is None else has_ended(engine)
    return engine_health(engine, mirror, at_ms, has_ended=ended, heard_ms=heard_ms)
