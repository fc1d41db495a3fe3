"""The topics of one mirror as watchers of a run see them; a view is made again only if it may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.control.mirror_status import MirrorStatus
from kmirror.engine.histories.identity_check import LINK_REFUSED
from kmirror.errors import KmirrorError, Reason
from kmirror.state.records import PartitionState

_ALIGNING = PartitionState.LOG_ALIGNMENT
#: How much older the time of an unchanged topic's view may be than it would be if the view were made again.
_AS_OF_MS = 5_000


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic while the engine runs. `lag` in offsets as of `lag_as_of_ms`, None while it is unstatus."""

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
    aligned = len(rows) == len(partitions) and all(row.begun or row.state is not _ALIGNING for row in rows)
    source_trouble = status.source_trouble
    link = link_state([row.reason for row in rows], source_trouble)
    flows = "LINK_FAILED" if troubles else "ACTIVE"
    state = "FAILED" if failed else link or (flows if aligned else "PENDING_MIRROR")
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
        state,
        reason,
        message,
        min(as_of) if len(as_of) == len(partitions) else None,
    )


def link_state(reasons: Sequence[Reason | None], source_trouble: KmirrorError | None) -> str | None:
    """Return the state of a topic whose link is refused or down; None if it is neither.

    `reasons` are those of its partitions' rows, `source_trouble` is that of the source monitor.
    """
    if LINK_REFUSED.intersection(reasons) or (source_trouble is not None and source_trouble.reason in LINK_REFUSED):
        return "LINK_FAILED"
    is_silent = source_trouble is not None or (reasons and set(reasons) == {Reason.SOURCE_UNREACHABLE})
    return "SOURCE_UNAVAILABLE" if is_silent else None
