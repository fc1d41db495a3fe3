"""Another client that writes to a mirror topic: with and without a producer id, and in an aborted transaction."""

from __future__ import annotations

import time

from kmirror.cluster.producers import describe_producers
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.leader import Leader
from tests.support.log_batches import VisibleRecord
from tests.support.producers import whole_batches

#: Brokers allocate no ids from here up; mirrors use them.
_OWN_IDS = 1 << 62


def labelled(label: str, count: int) -> list[VisibleRecord]:
    """Return records that differ from every other label's."""
    now = int(time.time() * 1000)
    return [VisibleRecord(0, now, b"%d" % number, f"{label}-{number}".encode()) for number in range(count)]


def write_plainly(cluster: SandboxCluster, topic: str, count: int) -> str:
    """Write records without a producer id; return the writer as it is reported."""
    _write(cluster, topic, count, {"enable.idempotence": "false"})
    return "a producer without an id"


def write_idempotently(cluster: SandboxCluster, topic: str, count: int) -> str:
    """Write records with a producer id; return the writer as it is reported."""
    _write(cluster, topic, count, {"enable.idempotence": "true"})
    with Leader(cluster, topic) as leader:
        found = describe_producers(leader.client, [leader.partition])[leader.partition].producers
    (producer_id,) = {one.producer_id for one in found if one.producer_id < _OWN_IDS}
    return f"producer id {producer_id}"


def write_and_abort(cluster: SandboxCluster, topic: str, count: int) -> None:
    """Write records in a transaction of their own, and abort it."""
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"{topic}-{time.time_ns()}"}
    producer = whole_batches(topic, config)
    producer.init_transactions(30)
    producer.begin_transaction()
    for record in labelled("aborted", count):
        producer.produce(topic, record.value, record.key, 0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)


def _write(cluster: SandboxCluster, topic: str, count: int, config: dict[str, str]) -> None:
    producer = whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, **config})
    for record in labelled("foreign", count):
        producer.produce(topic, record.value, record.key, 0, timestamp=record.timestamp)
    assert producer.flush(30) == 0
