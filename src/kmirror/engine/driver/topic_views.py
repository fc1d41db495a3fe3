"""The topics of one mirror as watchers of a run see them; a view is made again only if it may have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.mirror_status import MirrorStatus
from kmirror.engine.status.topic_state import TopicState, kind_of, topic_state_of
from kmirror.errors import Reason
from kmirror.state.records import PartitionState

#: How much older the time of an unchanged topic's view may be than it would be if the view were made again.
_AS_OF_MS = 5_000


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic while the engine runs. `lag` in offsets as of `lag_as_of_ms`, None while it is unknown."""

    mirror: str
    topic: str
    partitions: int
    lag: int | None
    bytes_per_second: float
    state: str
    reason: Reason | None
    message: str | None
    lag_as_of_ms: int | None = None


class TopicViews:
    """Keep the views of one mirror's topics; for one thread.

    While the destination accepts heartbeats, all lanes report and the source answers them, a view depends on the rows
    of its partitions alone: if those are unchanged, only the time of the view is new.
    """

    def __init__(self, status: MirrorStatus) -> None:
        self._status = status
        self._views: dict[str, TopicView] = {}
        self._was_steady = False

    def current(self) -> list[TopicView]:
        """Return a view of each topic that is copied, sorted by name."""
        status, changed = self._status, self._status.take_changed_topics()
        topic_partitions = status.wanted_partitions()
        for partition in status.lacking_partitions():
            topic_partitions[partition.topic] = [*topic_partitions[partition.topic], partition]
        since_ms = status.steady_since_ms(sum(map(len, topic_partitions.values())))
        kept = self._views if since_ms is not None and self._was_steady else {}
        self._was_steady = since_ms is not None
        views = {}
        for topic, partitions in topic_partitions.items():
            view = kept.get(topic)
            if view is None or topic in changed or view.partitions != len(partitions):
                view = topic_view(status, topic, partitions)
            elif view.lag_as_of_ms is not None and since_ms is not None and since_ms - view.lag_as_of_ms >= _AS_OF_MS:
                view = replace(view, lag_as_of_ms=since_ms)
            views[topic] = view
        self._views = views
        return [views[topic] for topic in sorted(views)]


def topic_view(status: MirrorStatus, topic: str, partitions: Sequence[TopicPartition]) -> TopicView:
    """Sum up the partitions of a topic."""
    rows = [row for partition in partitions if (row := status.row(partition)) is not None]
    troubles = {partition: found for partition in partitions if (found := status.trouble(partition)) is not None}
    lags = [status.lag(partition) for partition in partitions]
    as_of = [at for partition in partitions if (at := status.lag_as_of_ms(partition)) is not None]
    failed = next((row for row in rows if row.state is PartitionState.FAILED), None)
    troubled = failed or next((row for row in rows if row.reason), None)
    source_trouble = status.source_trouble
    reason, message = (troubled.reason, troubled.message) if troubled else (None, None)
    if troubles and not failed:
        reason, message = next(iter(troubles.values()))
    elif troubled is None and source_trouble is not None:
        reason, message = source_trouble.reason or Reason.SOURCE_UNREACHABLE, str(source_trouble)
    elif troubled is None and (lacking := status.lacking(topic)) is not None:
        reason, message = lacking.reason or Reason.PARTITION_MISSING, lacking.message
    return TopicView(
        status.mirror,
        topic,
        len(partitions),
        None if None in lags else sum(lag for lag in lags if lag is not None),
        sum(row.bytes_per_second for row in rows if TopicPartition(row.topic, row.partition) not in troubles),
        _state(status, topic, partitions, troubles),
        reason,
        message,
        min(as_of) if len(as_of) == len(partitions) else None,
    )


def _state(
    status: MirrorStatus,
    topic: str,
    partitions: Sequence[TopicPartition],
    troubles: Mapping[TopicPartition, tuple[Reason, str]],
) -> TopicState:
    """Return a topic's state, which is LINK_FAILED wherever it is unknown whether its partitions are copied."""
    found: list[tuple[PartitionState, Reason | None]] = []
    for partition in partitions:
        row, trouble = status.row(partition), troubles.get(partition)
        reason = trouble[0] if trouble is not None else row.reason if row is not None else None
        found.append((row.state if row is not None else PartitionState.LOG_ALIGNMENT, reason))
    records, seen = status.records(partitions), kind_of(status.source_trouble)
    state = topic_state_of(status.topic(topic), found, records, seen)
    return TopicState.LINK_FAILED if troubles and state is TopicState.ACTIVE else state
