"""A lane fills the offsets at which its source shows nothing, over networks that lose requests too.

Without the rights for it: test_filling_rights.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.reader import PartitionReader
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.far_logs import write_large
from tests.support.holes import assert_alike, write_holes
from tests.support.lane import Mirror, copy_of, fill
from tests.support.late_wire import MARKERS, Fate, LateWire
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.wire import Wire

#: How long the lanes of these tests take for it that a request without an answer may still arrive.
SETTLE_MS = 3000
OLD_MS = 1_400_000_000_000


@pytest.fixture
def mirror(wired: tuple[SandboxCluster, LateWire]) -> Iterator[Mirror]:
    """Return a mirror from topics to topics of the same cluster."""
    with closing(Mirror(wired[0], wired[0], ttl_ms=SETTLE_MS)) as made:
        yield made


def test_holes_are_filled(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(3)
    for partition in range(3):
        write_holes(mirror.source, topic, partition)
    lane = mirror.start()
    mirror.wait_copied(lane)
    write_holes(mirror.source, topic)
    mirror.wait_copied(lane)
    assert_alike(mirror, topic, 3)
    assert mirror.stop(lane).clean


def marker_times(mirror: Mirror, topic: str, partition: int) -> list[int]:
    """Return when the destination's broker wrote each of the partition's markers, in milliseconds."""
    topic_partition = TopicPartition(mirror.mirror_of(topic), partition)
    reader = PartitionReader(mirror.at_destination, topic_partition)
    headers = (h for found in reader.batches(0, mirror.destination_ends()[str(topic_partition)]) for h in found.headers)
    return [header.max_timestamp for header in headers if header.is_control]


def test_large_holes_do_not_keep_a_small_one_waiting(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(3)
    for partition, hole in enumerate((10_000, 1, 10_000)):
        write_holes(mirror.source, topic, partition, stretches=((hole, 1),))
    lane = mirror.start()
    mirror.wait_copied(lane)
    first, (small,), second = (marker_times(mirror, topic, partition) for partition in range(3))
    assert small < first[5_000]
    assert small < second[5_000]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "timestamp"),
    [
        pytest.param(Fate.LOST, None, marks=pytest.mark.long),
        pytest.param(Fate.LOST, OLD_MS, marks=pytest.mark.slow),
        pytest.param(Fate.UNANSWERED, None, marks=pytest.mark.long),
        pytest.param(Fate.UNANSWERED, OLD_MS, marks=pytest.mark.long),
        (Fate.LATE, None),  # for old records see the next test: the broker does not keep their producer state for ever
    ],
)
def test_a_request_for_markers_of_unknown_outcome_never_shifts_the_log(
    mirror: Mirror, wire: LateWire, fate: Fate, timestamp: int | None
) -> None:
    """The connection is cut between request and answer: of the first hole's body, its last offset, and later ones."""
    topic = mirror.topic()
    write_holes(mirror.source, topic, timestamp=timestamp)
    wire.plan(fate, Fate.ANSWERED, fate, Fate.ANSWERED, Fate.ANSWERED, fate, api_key=MARKERS)
    lane = mirror.start()
    mirror.wait_copied(lane)
    mirror.stop(lane)
    wire.deliver()  # now it is refused: it would come behind the markers that followed it
    assert mirror.destination_ends() == mirror.source_ends()
    assert_alike(mirror, topic)


@pytest.mark.slow
def test_markers_and_batches_lost_at_random(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(4)
    for partition in range(4):
        for timestamp in (None, OLD_MS, None):
            write_holes(mirror.source, topic, partition, timestamp=timestamp)
    dice = random.Random(7)
    wire.roll(dice, [Fate.ANSWERED] * 12 + [Fate.LOST, Fate.UNANSWERED, Fate.LATE], SETTLE_MS / 1000 * 0.8)
    lane = mirror.start()
    wire.plan(*[Fate.UNANSWERED] * 3, api_key=PRODUCE)
    try:
        mirror.wait_copied(lane, 120)
    finally:
        wire.calm()
    mirror.stop(lane)
    assert mirror.destination_ends() == mirror.source_ends()
    assert_alike(mirror, topic, 4)


@pytest.mark.parametrize("delay", [0.0, 0.04], ids=["near", "far"])
def test_partitions_that_wait_for_their_holes_hold_up_no_other(forgetful: ForgetfulCluster, delay: float) -> None:
    """Together they have much more than a lane may hold; their markers take as long as this test wants."""
    filled, wire = threading.Event(), forgetful.wire
    with closing(Mirror(forgetful.behind_wire, forgetful.behind_wire)) as mirror:
        mirror.buffer_bytes = 8 << 20
        old, live = mirror.topic(12), mirror.topic()
        for partition in range(12):
            write_holes(mirror.source, old, partition, stretches=((1, 1),))
        write_large(mirror.source, old, 12, 3)
        write_large(mirror.source, live, 1, 12)
        properties = {**mirror.spec().destination_properties, "request.timeout.ms": "60000"}
        wire.delay = delay
        with held_up(wire, filled):
            lane = mirror.start(destination_properties=properties)
            mirror.wait(lane, lambda: sum(len(copy.queue) > 1 for copy in lane.partitions) > 5)
            name = str(TopicPartition(mirror.mirror_of(live), 0))
            for _ in range(3):
                mirror.wait(lane, lambda: mirror.destination_ends()[name] == mirror.source_ends()[name])
                time.sleep(1)
                fill(mirror, live, 10)
            assert not copy_of(lane, mirror.mirror_of(old)).progress.bytes_copied
        mirror.wait_copied(lane)
        assert mirror.stop(lane).clean
        assert_alike(mirror, old, 12, least=100)


@contextmanager
def held_up(wire: Wire, until: threading.Event) -> Iterator[None]:
    """Pass on requests for markers only when `until` is set."""

    def pass_on(frame: bytes) -> bytes:
        until.wait()
        return frame

    wire.rewrite(MARKERS, pass_on)
    try:
        yield
    finally:
        until.set()
        wire.calm()
        wire.delay = 0.0
