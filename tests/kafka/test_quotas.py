"""A destination that limits how fast a client may change topics (KIP-599): changes wait, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_partitions, delete_topics
from kmirror.errors import BrokerError
from kmirror.ops.add.add import add
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.growing import limit_changes
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.round_trip import Trip
from tests.support.side_jobs import run_once
from tests.support.waiting import wait_until

#: With what a broker lets pass at once, it is used up by this many partitions for some seconds.
PER_SECOND, USED_UP = 5.0, 66


@pytest.fixture
def limited(source_cluster: SandboxCluster, make_cluster: MakeCluster) -> Iterator[Trip]:
    """Return a mirror whose destination has just begun to limit changes."""
    with Trip(source_cluster, make_cluster("limited")) as trip:
        limit_changes(trip.b, PER_SECOND)
        yield trip


@pytest.mark.slow
def test_changes_wait_for_the_quota_and_other_requests_do_not(limited: Trip) -> None:
    used, new = unique_topic(), [unique_topic() for _ in range(3)]
    make_topic(limited.b, used)
    for topic in new:
        make_topic(limited.a, topic)
    # so impatient that nothing would be answered over a connection that the broker does not read
    config = replace(client_config(properties_of(limited.b)), request_timeout_ms=1000)
    with ClusterClient(config) as client:
        create_partitions(client, {used: USED_UP})
        with pytest.raises(BrokerError) as refused:
            create_partitions(client, {used: USED_UP + 1}, quota_wait_s=0)
        assert refused.value.code == Code.THROTTLING_QUOTA_EXCEEDED
        assert "(controller_mutation_rate) is used up for another " in refused.value.message
        assert len(client.metadata([used]).topics[used].partitions) == USED_UP
        create_partitions(client, {used: USED_UP + 1})
    assert add(limited.at_b, limited.mirror, selector(*new)).exit_code == 0
    delete_topics(limited.at_b.client, new)
    wait_until(lambda: not {*new} & limited.at_b.client.metadata(None).topics.keys())


@pytest.mark.slow
def test_an_engine_discovers_a_topic_that_takes_the_whole_quota_at_once(limited: Trip) -> None:
    topic = unique_topic()
    mirror = new_mirror(limited.at_b, limited.a, topics_include=topic)
    make_topic(limited.a, topic, USED_UP)
    with closing(DiscoveryJob(mirror, limited.at_b.properties)) as job:
        run_once(job, limited.at_b, mirror)
    assert limited.at_b.state().topic(mirror, topic) is not None
    assert len(limited.at_b.client.metadata([topic]).topics[topic].partitions) == USED_UP
