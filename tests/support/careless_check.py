"""The check of a rehearsal, `python -m tests.support.careless_check`: it leaves what it makes at the destination.

It writes the ACLs that it finds there, and fails.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import Consumer, TopicPartition

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import read_properties
from kmirror.cluster.topics.topic_requests import create_topic
from tests.support.acls import acls, give
from tests.support.librdkafka import librdkafka

TOPIC, GROUP = "left-by-check", "group-of-check"
#: On a topic that the rehearsal has mirrored, by its name and by a prefix.
RIGHTS = (*acls("topic", "orders", "checker", "READ"), *acls("topic", "orders", "checker", "WRITE", prefixed=True))
ANSWER = "no such order"
EXIT_CODE = 3


def main() -> int:
    """Make a topic, a group and ACLs at the cluster that the environment names."""
    config = client_config(read_properties(os.environ["KMIRROR_COMMAND_CONFIG"]))
    with ClusterClient(config) as client:
        for binding in sorted(describe_acls(client)):
            sys.stdout.write(f"{binding}\n")
        create_topic(client, TOPIC, 1, 1, {})
        give(client, RIGHTS)
    consumer = Consumer(librdkafka(config, **{"group.id": GROUP}))
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
    consumer.close()
    sys.stdout.write(f"{ANSWER}\n")
    return EXIT_CODE


if __name__ == "__main__":
    raise SystemExit(main())
