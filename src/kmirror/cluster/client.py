"""A client of one cluster: a connection per broker, requests sent to the right one. Blocking; for one thread at a time.

A request that only reads is repeated when its answer is lost, on a new connection, until the time is up. One that
changes something is sent once (`topics/topic_requests`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.connection import Connection, UnsupportedVersionError, WrongClusterError
from kmirror.cluster.kept_connections import is_usable
from kmirror.cluster.log_ahead import SpareConnections
from kmirror.cluster.protocol import list_offsets, produce
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAnswer
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.wire import Exchange, FrameError
from kmirror.cluster.reaching import EACH_SECONDS, SILENT_ADDRESSES, open_any, open_connection
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.seen_brokers import SEEN_BROKERS
from kmirror.cluster.threaded_calls import call_each
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.words import visible

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "ClusterClient", "Lookup", "OffsetAnswer", "require", "seconds_left"]

_RETRY_PAUSE = 0.1
#: No answer is waited for less long than this.
LEAST_S = 0.1
#: Raised by reading an answer in which something is null that a broker never leaves out.
_MALFORMED_ANSWER = (TypeError, AttributeError)

_Build = Callable[[list[TopicPartition], ClusterMetadata], Any]
_Read = Callable[[Any, list[TopicPartition]], Iterable[tuple[TopicPartition, int, Any]]]


@dataclass(frozen=True, slots=True)
class Lookup:
    """An offset to look up, of all partitions or of each its own: EARLIEST, LATEST and others as in `list_offsets`."""

    timestamp: int | Mapping[TopicPartition, int]
    read_committed: bool = False
    log_end: bool = False


class ClusterClient:
    """Send requests to one cluster's brokers; keeps connections, and looks up leaders when they move."""

    def __init__(self, config: ClientConfig) -> None:
        #: With the id of the cluster, once known: whatever answers at an address of it must be a broker of it.
        self.config = config
        self._connections: dict[int, Connection] = {}
        self._bootstrap: Connection | None = None
        self._metadata: ClusterMetadata | None = None
        #: The addresses in bootstrap.servers that were tried before one that answers, and what is wrong with each.
        self.passed_over: Mapping[str, str] = {}
        self._topics = metadata_codec.TopicsCache()
        #: Further connections, for reading ahead.
        self.spare_connections = SpareConnections(config)
        #: By partition whose leader did not answer when it was last asked: which broker that is, and what is wrong.
        self.unanswered: dict[TopicPartition, str] = {}
        #: True once a log of the cluster has stayed silent (`reader`).
        self.has_silent_logs = False

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])):
            connection.close()
        self.spare_connections.close()
        self._connections.clear()
        self._bootstrap = None

    def connect(
        self, node_id: int, host: str, port: int, *, timeout: float | None = None, skips_silent: bool = False
    ) -> Connection:
        """Return the connection to a broker, opening it where needed, within `timeout` seconds.

        Raises:
            UnreachableError: the broker cannot be reached or refuses us; with `skips_silent` at once if it was silent.
        """
        known = self._connections.get(node_id)
        if known is None and self._bootstrap and (self._bootstrap.host, self._bootstrap.port) == (host, port):
            # the first connection is to this broker
            known = self._connections[node_id] = self._bootstrap
            self._bootstrap = None
        if known:
            if (known.host, known.port) == (host, port) and is_usable(known):
                return known
            known.close()
        connection = open_connection(host, port, self.config, timeout, skips_silent=skips_silent)
        self._connections[node_id] = connection
        return connection

    def connect_each(self, brokers: Iterable[Broker], timeout: float = EACH_SECONDS) -> dict[Broker, str]:
        """Open connections to brokers, all at once, if they answer; return where another cluster does, and its id."""
        asked = list(brokers)

        def identify(broker: Broker) -> str | None:
            with suppress(KmirrorError, OutcomeUnknown):
                try:
                    address = broker.node_id, broker.host, broker.port
                    self.connect(*address, timeout=timeout, skips_silent=True).require_cluster(timeout)
                except WrongClusterError as error:
                    return error.found
            return None

        found = call_each(identify, asked, "kmirror-brokers")
        return {broker: other for broker, other in zip(asked, found, strict=True) if other is not None}

    def ask_any(
        self, message: Any, *, lowest: int = 0, highest: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send a request to any broker that answers, and is one of the cluster.

        Raises:
            UnsupportedVersionError: it does not support a version from `lowest` to `highest`.
            UnreachableError: none answers within `timeout` seconds (request.timeout.ms by default).
        """
        deadline = time.monotonic() + (timeout or self.config.request_timeout_ms / 1000)
        failed: dict[tuple[str, int], UnreachableError] = {}
        while True:
            # half of the time left, so that a broker that does not answer leaves time for another one
            patience = max((deadline - time.monotonic()) / 2, 0.1)
            try:
                connection = self.any_connection(patience, failed)
            except UnreachableError:
                if all(isinstance(error, WrongClusterError) for error in failed.values()):
                    raise
                failed.clear()
                time.sleep(_RETRY_PAUSE)
                continue
            address = connection.host, connection.port
            try:
                return connection.request(message, lowest=lowest, highest=highest, timeout=patience)
            except WrongClusterError as error:
                failed[address] = error
            except (OutcomeUnknown, FrameError) as error:
                failed[address] = UnreachableError(str(error), "check that the cluster is up")
            if time.monotonic() > deadline:
                raise failed[address]

    def highest_version(self, api_key: int) -> int:
        """Return the highest version of a request that some broker offers, -1 if it offers none.

        Raises:
            UnreachableError: no broker answers.
        """
        return self.any_connection().api_versions.get(api_key, (0, -1))[1]

    def any_connection(
        self, timeout: float | None = None, failed: Mapping[tuple[str, int], UnreachableError] | None = None
    ) -> Connection:
        """Return a connection to some broker, but not at an address that has `failed`."""
        for connection in (*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])):
            if is_usable(connection):
                return connection
        addresses = list(self.config.bootstrap_servers)
        if self._metadata:
            addresses += [(b.host, b.port) for b in self._metadata.brokers.values()]
        addresses += SEEN_BROKERS.of(self.config)
        if self._bootstrap:
            self._bootstrap.close()
        errors = dict(failed or {})
        self._bootstrap = open_any(addresses, self.config, timeout, errors)
        known = {a: errors.get(a) or SILENT_ADDRESSES.of(a) for a in self.config.bootstrap_servers}
        self.passed_over = {f"{a[0]}:{a[1]}": str(error) for a, error in known.items() if error is not None}
        return self._bootstrap

    def pause(self, attempt: int) -> None:
        """Sleep before trying again, longer each time, at most a second."""
        time.sleep(min(1.0, _RETRY_PAUSE * (attempt + 1)))

    def metadata(self, topics: Iterable[str] | None = None, *, timeout: float | None = None) -> ClusterMetadata:
        """Ask for brokers and topics: those named, none for an empty list, all for None.

        Topics that do not exist, or may not be seen, come back with an error code (or not at all when all are asked).
        A broker that is cut off from the controllers, or behind them, does not know topics that exist. So a topic that
        one broker does not know is UNKNOWN_TOPIC_OR_PARTITION only if no broker knows it; if some broker does not
        answer, it is BROKER_NOT_AVAILABLE.
        """
        wanted = None if topics is None else list(topics)
        found: ClusterMetadata = self.ask_any(metadata_codec.exchange(wanted, self._topics), timeout=timeout)
        if not found.brokers:
            raise UnreachableError("the cluster reports no brokers yet", "it may still be starting; try again")
        self._metadata = found
        if self.config.cluster_id is None:
            self.config = self.spare_connections.config = replace(self.config, cluster_id=found.cluster_id)
        SEEN_BROKERS.note(self.config, ((b.host, b.port) for b in found.brokers.values()))
        unknown = [t.name for t in found.topics.values() if t.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION]
        if unknown and len(found.brokers) > 1:
            found = replace(found, topics={**found.topics, **self._known_elsewhere(found, unknown, timeout)})
        return found

    def _known_elsewhere(
        self, found: ClusterMetadata, unknown: list[str], timeout: float | None
    ) -> dict[str, TopicMetadata]:
        """Ask every broker for topics that one does not know; return what is known of them then."""
        answers = self.ask_each(found.brokers.values(), metadata_codec.exchange(unknown), timeout=timeout)
        topics = metadata_codec.newest([found, *filter(None, answers)]).topics
        code = int(Code.UNKNOWN_TOPIC_OR_PARTITION if all(answers) else Code.BROKER_NOT_AVAILABLE)
        return {n: replace(topics[n], error_code=code) if topics[n].error_code else topics[n] for n in unknown}

    def newest_metadata(
        self, topics: Iterable[str], *, timeout: float | None = None
    ) -> tuple[ClusterMetadata, frozenset[int]]:
        """Ask every broker for topics; return the newest of what they say, and the brokers that do not answer.

        A broker that is cut off from the others still answers as the leader that it was. While some broker does not
        answer, the partitions that have a replica on it may have another leader than known, and a later end.

        Raises:
            UnreachableError: no broker answers.
        """
        wanted, began = list(topics), time.monotonic()
        found = self.metadata(wanted, timeout=timeout)
        if len(found.brokers) < 2:
            return found, frozenset()
        nodes = list(found.brokers)
        left = None if timeout is None else max(timeout - (time.monotonic() - began), _RETRY_PAUSE)
        answers = self.ask_each(found.brokers.values(), metadata_codec.exchange(wanted), timeout=left)
        self._metadata = metadata_codec.newest([found, *filter(None, answers)])
        return self._metadata, frozenset(node for node, answer in zip(nodes, answers, strict=True) if not answer)

    def ask_each(
        self,
        brokers: Iterable[Broker],
        message: Any,
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Send a request to each of these brokers at once; return the answers, None where one does not answer."""
        patience = EACH_SECONDS if timeout is None else min(timeout / 2, EACH_SECONDS)

        def ask(broker: Broker) -> Any:
            try:
                address = broker.node_id, broker.host, broker.port
                connection = self.connect(*address, timeout=patience, skips_silent=True)
                return connection.request(message, lowest=lowest, highest=highest, timeout=patience)
            except (KmirrorError, OutcomeUnknown, FrameError):
                return None

        return call_each(ask, brokers, "kmirror-brokers")

    def foreign_brokers(self) -> dict[Broker, str]:
        """Return the brokers at whose addresses another cluster answers, as the cluster reports them, with its id."""
        return self.connect_each((self._metadata or self.metadata([])).brokers.values())

    def per_leader(
        self,
        partitions: Iterable[TopicPartition],
        build: _Build,
        read: _Read,
        *,
        metadata: ClusterMetadata | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, tuple[int, Any]]:
        """Send one request to each leader; collect (error code, answer) per partition.

        `build` makes the request, or a list of `Exchange`s, for sorted partitions; `read` takes the answer and these
        partitions, and yields (partition, error code, answer). All leaders are asked at once, so that one that does not
        answer does not delay the others.
        Leaders that moved are looked up again until `timeout`; partitions without an answer by then have an error code.
        Give `metadata` if it was just read.

        Raises:
            UnreachableError: no broker of the cluster answers at all, or all leaders refuse us.
        """
        deadline = time.monotonic() + (timeout or self.config.request_timeout_ms / 1000)
        missing = set(partitions)
        answers: dict[TopicPartition, tuple[int, Any]] = {}
        attempt, known = 0, metadata
        while missing:
            try:
                found = known or self.metadata({p.topic for p in missing}, timeout=seconds_left(deadline))
            except UnreachableError:
                if not answers or time.monotonic() < deadline:
                    raise
                break  # the other leaders' answers count
            known = None
            by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
            for partition in missing:
                leader = found.leader(partition)
                if leader is None or leader.leader_id is None:
                    topic = found.topics.get(partition.topic)
                    code = topic.error_code if topic and topic.error_code else Code.LEADER_NOT_AVAILABLE
                    answers[partition] = (code, None)
                else:
                    by_leader[leader.leader_id].append(partition)
            ask = partial(self._ask_leader, found, build, read, answers, deadline)
            refusals = call_each(ask, by_leader.items(), "kmirror-leaders")
            if refusals and refusals[0] and all(refusals):
                raise refusals[0]
            missing = {p for p in missing if answers[p][0] in LEADER_MOVED}
            if time.monotonic() > deadline:
                break
            if missing:
                self.pause(attempt)
                attempt += 1
        return answers

    def _ask_leader(
        self,
        metadata: ClusterMetadata,
        build: _Build,
        read: _Read,
        answers: dict[TopicPartition, tuple[int, Any]],
        deadline: float,
        led_by: tuple[int, list[TopicPartition]],
    ) -> KmirrorError | None:
        """Ask one leader for its partitions; return the error if it refuses us."""
        node_id, led = led_by[0], sorted(led_by[1])
        broker = metadata.brokers[node_id]
        for partition in led:
            answers[partition] = (Code.BROKER_NOT_AVAILABLE, None)
        try:
            connection = self.connect(node_id, broker.host, broker.port, timeout=seconds_left(deadline))
            asked = build(led, metadata)
            send: Callable[..., Any] = connection.request_all if isinstance(asked, list) else connection.request
            answer = send(asked, timeout=seconds_left(deadline))
        except UnsupportedVersionError as error:
            return error
        except (UnreachableError, OutcomeUnknown, FrameError) as error:
            self.unanswered.update(dict.fromkeys(led, f"broker {node_id} does not answer: {error}"))
            if isinstance(error, UnreachableError) and error.reason is Reason.AUTHENTICATION_FAILED:
                return error
            return error if isinstance(error, WrongClusterError) else None
        try:
            for partition, code, value in read(answer, led):
                answers[partition] = (code, value)
                self.unanswered.pop(partition, None)
        except _MALFORMED_ANSWER:
            connection.close()
        return None

    def look_up_offsets(
        self,
        partitions: Iterable[TopicPartition],
        lookups: Sequence[Lookup],
        *,
        metadata: ClusterMetadata | None = None,
        timeout: float | None = None,
    ) -> list[dict[TopicPartition, OffsetAnswer]]:
        """Look up several offsets of each partition at once; each leader is asked in this order. Raises as below."""

        def build(led: list[TopicPartition], known: ClusterMetadata) -> list[Exchange]:
            return [self.offsets_question(led, one, known) for one in lookups]

        def read(
            answers: Sequence[Mapping[TopicPartition, OffsetAnswer]], _: object
        ) -> Iterable[tuple[TopicPartition, int, list[OffsetAnswer]]]:
            for partition in answers[0]:
                found = [one[partition] for one in answers if partition in one]
                if len(found) == len(answers):
                    yield partition, next((one.error_code for one in found if one.error_code), 0), found

        answers = self.per_leader(partitions, build, read, metadata=metadata, timeout=timeout)
        return [
            {p: found[index] if found else OffsetAnswer(code, None, -1) for p, (code, found) in answers.items()}
            for index in range(len(lookups))
        ]

    def offsets_question(self, led: Iterable[TopicPartition], lookup: Lookup, known: ClusterMetadata) -> Exchange:
        """Return the request to one leader that looks up an offset of each partition."""
        times = lookup.timestamp
        asked = {
            p: (
                known.topics[p.topic].partitions[p.partition].leader_epoch,
                times if isinstance(times, int) else times[p],
            )
            for p in led
        }
        replica_id = list_offsets.DEBUGGING_REPLICA if lookup.log_end else list_offsets.CONSUMER
        isolation_level = list_offsets.READ_COMMITTED if lookup.read_committed else 0
        return list_offsets.exchange(asked, replica_id, isolation_level, self.config.request_timeout_ms)

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        log_end: bool = False,
        metadata: ClusterMetadata | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Look up offsets: EARLIEST, LATEST, MAX_TIMESTAMP, or the first at or after a timestamp in epoch milliseconds.

        LATEST is the high watermark; with `read_committed` the last stable offset; with `log_end` the true log end.
        Give `metadata` of these topics if it was just read.

        Raises:
            UnsupportedVersionError: a broker before Kafka 3.0 is asked for MAX_TIMESTAMP.
            UnreachableError: no broker of the cluster answers at all, or all leaders refuse us.
        """
        lookup = Lookup(wanted, read_committed=read_committed, log_end=log_end)
        return self.look_up_offsets(wanted, [lookup], metadata=metadata, timeout=timeout)[0]

    def send_batches(
        self,
        partitions: Iterable[TopicPartition],
        batch_of: Callable[[TopicPartition], bytes],
        *,
        metadata: ClusterMetadata | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Send each partition one batch, as it is; return the error codes. Give `metadata` if it was just read."""

        def build(led: list[TopicPartition], known: ClusterMetadata) -> Exchange:
            topics = known.topics
            appends = [produce.Append(one[0], topics[one[0]].topic_id, one[1], batch_of(one)) for one in led]
            return produce.exchange(appends, self.config.request_timeout_ms)

        def read(
            answers: Mapping[TopicPartition, produce.AppendAnswer], _: object
        ) -> Iterable[tuple[TopicPartition, int, None]]:
            return ((partition, one.error_code, None) for partition, one in answers.items())

        answers = self.per_leader(partitions, build, read, metadata=metadata, timeout=timeout)
        return {partition: code for partition, (code, _) in answers.items()}

    def broker_configs(self, node_ids: Iterable[int], names: list[str]) -> dict[int, dict[str, str]]:
        """Read settings of brokers; without the brokers that do not return them."""
        resource_type = kafka.DescribeConfigsRequest.DescribeConfigsResource
        metadata = self._metadata or self.metadata([])
        settings: dict[int, dict[str, str]] = {}
        for node_id in node_ids:
            broker = metadata.brokers.get(node_id)
            if broker is None:
                continue
            resource = resource_type(resource_type=4, resource_name=str(node_id), configuration_keys=names)
            try:
                connection = self.connect(node_id, broker.host, broker.port)
                answer = connection.request(kafka.DescribeConfigsRequest(resources=[resource]), highest=4)
            except (KmirrorError, OutcomeUnknown):
                continue
            for result in answer.results:
                if result.error_code == 0:
                    settings[node_id] = {c.name: c.value for c in result.configs if c.value is not None}
        return settings


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of CLOCK_MONOTONIC, but never too few for an answer that is on its way."""
    return max(deadline - time.monotonic(), LEAST_S)


def require(code: int, what: str, detail: str | None = None) -> None:
    """Raise BrokerError unless `code` is 0."""
    if code:
        raise BrokerError(code, code_name(code), what, visible(detail or ""))
