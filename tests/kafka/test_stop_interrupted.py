"""A stop is interrupted in the middle: frozen until another command has undone it, or cut off from the destination."""

from __future__ import annotations

import time

import pytest

from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.stop.failover import failover, remove
from kmirror.state.records import DesiredState, EngineState
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector, settings_of

CLAIMED = "record which topics are stopped, and why: engines release them"
ENDS_RECORDED = "record where the source's records end (LMO); from here on others may write"


def mirrored(pair: ClusterPair, destination: Destination, *topics: str, **settings: str) -> str:
    """Return a new mirror of new topics of these names, with three records each."""
    mirror = new_mirror(destination, pair.source)
    for topic in topics:
        make_topic(pair.source, topic, 1, **{"retention_ms": "-1", **settings})
        produce(pair.source, topic, ["one", "two", "three"])
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror


@pytest.mark.parametrize(
    ("verb", "frozen_after"),
    [("failover", CLAIMED), ("remove", CLAIMED), ("remove", ENDS_RECORDED)],
    ids=["failover claimed", "remove claimed", "remove ends recorded"],
)
def test_a_stop_that_was_undone_while_it_was_frozen_changes_nothing_of_the_live_mirror(
    cluster_pair: ClusterPair, destination: Destination, verb: str, frozen_after: str
) -> None:
    """Once, it fenced the engine that copies the topic again, or gave the topic the settings and rights of a stop."""
    undone, half_way = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, undone, half_way, compression_type="gzip")
    frozen = 0

    def freeze(does: str) -> None:
        nonlocal frozen
        if does != frozen_after:
            return
        frozen += 1
        with Destination.open(destination.properties) as another:
            assert remove(another, mirror, selector(undone)).result.exit_code == 0
            added = add(another, mirror, selector(undone), adopt=True)
            assert added.exit_code == 0, added
        time.sleep(1.1)  # what was seen later is taken as it was

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        with Destination.open(destination.properties) as slow:
            done = (
                failover(slow, mirror, checkpoint=freeze)
                if verb == "failover"
                else remove(slow, mirror, selector(undone, half_way), checkpoint=freeze)
            ).result
        running = destination.state().engine(mirror)
    assert frozen == 1
    rows = {row.topic: row for row in done.results}
    assert (rows[undone].result, rows[undone].reason) == (Outcome.FAILED, Reason.FENCED), done
    assert rows[half_way].result is Outcome.DONE, done
    assert done.exit_code == ExitCode.PARTLY_DONE
    topic = destination.state().topic(mirror, undone)
    assert topic is not None
    assert (topic.desired, topic.pending_operation) == (DesiredState.ACTIVE, None)
    place = TopicPartition(undone, 0)
    assert destination.client.list_offsets({place: LATEST}, log_end=True)[place].offset == 3
    assert settings_of(cluster_pair.destination, undone)["compression.type"] == "producer"
    if verb == "remove":
        assert running is not None
        assert running.state is EngineState.RUNNING
