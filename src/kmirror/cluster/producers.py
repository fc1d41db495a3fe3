"""What brokers remember of producers and their transactions (KIP-664), and for how long."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient, seconds_left
from kmirror.cluster.connection import exchange_of
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition, by_topic
from kmirror.cluster.protocol.produce import AppendLimits, ProducerState
from kmirror.cluster.protocol.wire import Exchange
from kmirror.errors import KmirrorError, OutcomeUnknown

#: The largest request that a broker takes. It closes the connection over which a larger one arrives, without an answer.
REQUEST_LIMIT = "socket.request.max.bytes"
#: How long an idle producer id is remembered. Brokers before Kafka 3.4 (KIP-854) have only the second setting.
_PRODUCER_EXPIRATION = ("producer.id.expiration.ms", "transactional.id.expiration.ms")


@dataclass(frozen=True, slots=True)
class ProducersAnswer:
    """One partition's answer to DescribeProducers."""

    error_code: int
    producers: tuple[ProducerState, ...]


def describe_producers(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    *,
    metadata: ClusterMetadata | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, ProducersAnswer]:
    """Ask the leaders which producers they remember (KIP-664); give `metadata` if it was just read."""

    def read(answer: Any, _: object) -> Iterable[tuple[TopicPartition, int, ProducersAnswer]]:
        return ((partition, found.error_code, found) for partition, found in producers_in(answer).items())

    def build(led: list[TopicPartition], _: ClusterMetadata) -> Exchange:
        return producers_question(led)

    found = client.per_leader(partitions, build, read, metadata=metadata, timeout=timeout)
    return {p: value or ProducersAnswer(code, ()) for p, (code, value) in found.items()}


def producers_question(led: Iterable[TopicPartition]) -> Exchange:
    """Return the request to one leader; what it answers is for `producers_in`."""
    topic_type = kafka.DescribeProducersRequest.TopicRequest
    topics = [topic_type(name=name, partition_indexes=indexes) for name, indexes in by_topic(led).items()]
    return exchange_of(kafka.DescribeProducersRequest(topics=topics))


def producers_in(answer: Any) -> dict[TopicPartition, ProducersAnswer]:
    """Return what one leader answered."""
    found = {}
    for topic in answer.topics:
        for p in topic.partitions:
            producers = tuple(
                ProducerState(
                    s.producer_id,
                    s.producer_epoch,
                    s.last_sequence,
                    s.last_timestamp,
                    s.coordinator_epoch,
                    s.current_txn_start_offset if s.current_txn_start_offset >= 0 else None,
                )
                for s in p.active_producers or ()
            )
            found[TopicPartition(topic.name, p.partition_index)] = ProducersAnswer(p.error_code, producers)
    return found


def append_limits(client: ClusterClient, node_id: int) -> AppendLimits:
    """Return how long a broker remembers an idle producer id, and the largest request that it takes."""
    found = client.broker_configs([node_id], [*_PRODUCER_EXPIRATION, REQUEST_LIMIT]).get(node_id, {})
    limit = found.get(REQUEST_LIMIT)
    return AppendLimits(_expiration_ms(found), int(limit) if limit else None)


def _expiration_ms(settings: Mapping[str, str]) -> int | None:
    value = next((settings[name] for name in _PRODUCER_EXPIRATION if name in settings), None)
    return int(value) if value else None


def producer_expiration_ms(client: ClusterClient, node_ids: Iterable[int]) -> dict[int, int]:
    """Return how long brokers remember an idle producer id, in milliseconds; without those that do not say."""
    found = client.broker_configs(node_ids, list(_PRODUCER_EXPIRATION))
    values = {node: _expiration_ms(own) for node, own in found.items()}
    return {node: value for node, value in values.items() if value}


def transactions_of(
    client: ClusterClient, producer_ids: Collection[int], patience_s: float
) -> dict[int, tuple[str, str]]:
    """Return transactional id and state by producer id, from the brokers that answer within `patience_s` seconds.

    Every broker is asked for the transactions that it coordinates. One that we may not see (DESCRIBE on its
    transactional id) is silently left out, and so is a hanging one, which no coordinator knows any more.

    Raises:
        UnreachableError: no broker answers.
    """
    until = time.monotonic() + patience_s
    found: dict[int, tuple[str, str]] = {}
    for broker in client.metadata([], timeout=patience_s).brokers.values():
        with suppress(KmirrorError, OutcomeUnknown):
            left = seconds_left(until)
            connection = client.connect(broker.node_id, broker.host, broker.port, timeout=left)
            request = kafka.ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
            answer = connection.request(request, highest=0, timeout=left)
            if not answer.error_code:
                for one in answer.transaction_states:
                    found[one.producer_id] = (one.transactional_id, one.transaction_state)
    return found
