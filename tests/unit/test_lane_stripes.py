"""Over which of a source broker's connections a partition is fetched."""

from __future__ import annotations

from collections import Counter

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lane.source_view import STRIPES, stripe_of


def test_the_partitions_of_a_topic_are_spread_evenly() -> None:
    spread = Counter(stripe_of(TopicPartition("orders", partition)) for partition in range(8))
    assert spread == dict.fromkeys(range(STRIPES), 8 // STRIPES)


def test_topics_of_one_partition_are_spread() -> None:
    spread = Counter(stripe_of(TopicPartition(f"topic-{number}", 0)) for number in range(1000))
    assert len(spread) == STRIPES
    assert min(spread.values()) > 400
