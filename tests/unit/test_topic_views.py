"""What watchers of a run are shown of topics, and when it is made again."""

from __future__ import annotations

from typing import cast

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.mirror_status import MirrorStatus
from kmirror.engine.driver.topic_views import TopicView, TopicViews
from kmirror.errors import KmirrorError, Reason
from kmirror.state.records import Lacking, PartitionRecord, PartitionState, ProgressRow, TopicRecord
from tests.support.live_engine import topic_record


class Known:
    """What an engine knows of two topics of two partitions."""

    mirror = "m"

    def __init__(self) -> None:
        self.rows = {TopicPartition(topic, index): self.said(topic, index, 5) for topic in "ab" for index in (0, 1)}
        self.source_trouble: KmirrorError | None = None
        self.moved: set[str] = set()
        self.steady_since: int | None = 1_000
        self.copied = ["b", "a"]
        self.is_silent = False
        self.asked: list[str] = []
        self.missing: list[TopicPartition] = []

    def lacking(self, topic: str) -> Lacking | None:
        return Lacking(3, None, "refused") if any(one.topic == topic for one in self.missing) else None

    def lacking_partitions(self) -> list[TopicPartition]:
        return self.missing

    @staticmethod
    def said(topic: str, index: int, end: int, state: PartitionState = PartitionState.MIRRORING) -> ProgressRow:
        return ProgressRow(topic, index, 10, 10, 0, end, None, state, begun=True, bytes_per_second=2.0)

    def row(self, partition: TopicPartition) -> ProgressRow | None:
        self.asked.append(partition.topic)
        return self.rows.get(partition)

    def trouble(self, _: TopicPartition) -> tuple[Reason, str] | None:
        return (Reason.NO_WORKERS, "no worker") if self.is_silent else None

    def lag(self, partition: TopicPartition) -> int | None:
        row = self.rows.get(partition)
        return None if row is None or self.is_silent else 10 - (row.destination_offset or 0)

    def lag_as_of_ms(self, partition: TopicPartition) -> int | None:
        return 1_000 if partition in self.rows else None

    def wanted_partitions(self) -> dict[str, list[TopicPartition]]:
        return {topic: [TopicPartition(topic, index) for index in (0, 1)] for topic in self.copied}

    @staticmethod
    def topic(name: str) -> TopicRecord:
        return topic_record(name, 2)

    @staticmethod
    def records(_: object) -> dict[int, PartitionRecord]:
        return {}

    def take_changed_topics(self) -> set[str]:
        moved, self.moved = self.moved, set()
        return moved

    def steady_since_ms(self, partitions: int) -> int | None:
        return self.steady_since if partitions == len(self.rows) else None


def test_only_views_of_topics_with_new_reports_are_rebuilt() -> None:
    known = Known()
    views = TopicViews(cast(MirrorStatus, known))
    first = [TopicView("m", topic, 2, 10, 4.0, "ACTIVE", None, None, 1_000) for topic in "ab"]
    assert views.current() == first
    known.asked.clear()
    known.steady_since = 5_999
    assert views.current() == first
    known.steady_since = 6_000
    (a, b) = views.current()
    assert (known.asked, a.lag, a.lag_as_of_ms, b.lag_as_of_ms) == ([], 10, 6_000, 6_000)
    known.rows[TopicPartition("b", 1)] = Known.said("b", 1, 9, PartitionState.FAILED)
    known.moved.add("b")
    (a, b) = views.current()
    assert (set(known.asked), a.state, b.state, b.lag) == ({"b"}, "ACTIVE", "FAILED", 6)
    known.copied.remove("a")
    assert [view.topic for view in views.current()] == ["b"]


def test_all_views_are_rebuilt_while_anything_but_rows_may_change_them() -> None:
    known = Known()
    views = TopicViews(cast(MirrorStatus, known))
    views.current()
    known.steady_since, known.is_silent = None, True
    assert {(view.state, view.lag) for view in views.current()} == {("LINK_FAILED", None)}
    known.steady_since, known.is_silent = 9_000, False
    assert {(view.state, view.lag) for view in views.current()} == {("ACTIVE", 10)}, "the first look after trouble"
    known.source_trouble, known.steady_since = KmirrorError("down", reason=Reason.SOURCE_UNREACHABLE), None
    assert {view.state for view in views.current()} == {"SOURCE_UNAVAILABLE"}
    known.source_trouble, known.steady_since = None, 9_000
    # a partition that no lane reports on: no lane is steady
    del known.rows[TopicPartition("a", 0)]
    assert [(view.state, view.lag, view.lag_as_of_ms) for view in views.current()] == [
        ("PENDING_MIRROR", None, None),
        ("ACTIVE", 10, 1_000),
    ]


def test_a_topic_that_lacks_a_partition_says_why() -> None:
    known = Known()
    views = TopicViews(cast(MirrorStatus, known))
    views.current()
    known.missing = [TopicPartition("a", 2)]
    (a, b) = views.current()
    assert (a.state, a.partitions, a.lag, a.reason, a.message) == (
        "PENDING_MIRROR",
        3,
        None,
        Reason.PARTITION_MISSING,
        "refused",
    )
    assert (b.state, b.partitions) == ("ACTIVE", 2)
