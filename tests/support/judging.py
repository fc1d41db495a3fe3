"""One partition's assignment and its producer, as the judge gets them."""

from __future__ import annotations

from kmirror.cluster.protocol.produce import ProducerState
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.judge import Facts, Verdict, judge
from kmirror.state.assignment import Assignment
from tests.support.histories import OWN_ID

SOURCE_ID, DESTINATION_ID, ANOTHER_ID = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16
ASSIGNMENT = Assignment(
    topic="mirrored",
    partition=3,
    source_topic="orders",
    source_topic_id=format_topic_id(SOURCE_ID),
    destination_topic_id=format_topic_id(DESTINATION_ID),
    producer_id=OWN_ID,
)


def producer(last_sequence: int, epoch: int = 0, coordinator_epoch: int = -1) -> ProducerState:
    return ProducerState(OWN_ID, epoch, last_sequence, 1_700_000_000_000, coordinator_epoch, None)


def verdict(facts: Facts, acknowledged: int | None = None, **others: object) -> Verdict:
    return judge(ASSIGNMENT, acknowledged, facts, **others)  # type: ignore[arg-type]
