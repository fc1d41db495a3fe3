"""A destination that limits how fast a client may change topics (KIP-599): changes wait, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import BrokerError
from kmirror.ops.add.add import add
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.growing import limit_changes
from tests.support.mirrors import make_topic, properties_of, selector
from tests.support.round_trip import Trip

#: With what a broker lets pass at once, it is used up by this many partitions for some seconds.
PER_SECOND, USED_UP = 5.0, 66


def test_changes_wait_for_the_quota_and_other_requests_do_not(trip: Trip, make_cluster: MakeCluster) -> None:
    limited = make_cluster("limited")
    used, new = unique_topic(), [unique_topic() for _ in range(3)]
    make_topic(limited, used)
    for topic in new:
        make_topic(trip.a, topic)
    with Trip(trip.a, limited) as mine:
        limit_changes(limited, PER_SECOND)
        # so impatient that nothing would be answered over a connection that the broker does not read
        config = replace(client_config(properties_of(limited)), request_timeout_ms=1000)
        with ClusterClient(config) as client:
            client.create_partitions({used: USED_UP})
            with pytest.raises(BrokerError) as refused:
                client.create_partitions({used: USED_UP + 1}, quota_wait_s=0)
            assert refused.value.code == Code.THROTTLING_QUOTA_EXCEEDED
            assert "(controller_mutation_rate) is used up for another " in refused.value.message
            assert len(client.metadata([used]).topics[used].partitions) == USED_UP
            client.create_partitions({used: USED_UP + 1})
        done = add(mine.at_b, mine.mirror, selector(*new))
        assert done.exit_code == 0
        mine.at_b.client.delete_topics(new)
        assert not {*new} & mine.at_b.client.metadata(None).topics.keys()
