"""Snapshots of both clusters: where every log starts and ends now. Reads only, and never waits long for a source.

The destination is read in the caller's thread, each source in its own, so that a source that is down only costs
`SOURCE_TIMEOUT_S`. One that did not answer in time is left to its thread, and queried again by the next read after that
thread has ended.

Follow-up queries (`Prober.ask_sources`) use the time that the read has left, and connections of their own, so that one
without an answer never affects a read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup, OffsetAnswer
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.base.context import REACH_TIMEOUT_S, Destination, naming_cluster, now_ms, require_same_cluster
from kmirror.state.records import MirrorRecord
from kmirror.status.engine_health import HeardEngines
from kmirror.status.observed import ClusterSnapshot, Offsets

#: How long a read waits for a source.
SOURCE_TIMEOUT_S = 3.0
#: How long the source's brokers may take: less, so that answers of some brokers are kept if others do not respond.
SOURCE_REQUEST_S = SOURCE_TIMEOUT_S - 0.5
#: The shortest time-out of a request.
_LEAST_REQUEST_S = 0.1
_DESTINATION_TIMEOUT_S = 5.0

Answer = TypeVar("Answer")


class Prober:
    """Read a destination and the sources of its mirrors, repeatedly; `close` it in the end."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._sources: dict[str, BackgroundQuery] = {}
        self._follow_ups: dict[str, BackgroundQuery] = {}
        self._until = 0.0
        self.heard = HeardEngines()

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the sources."""
        for query in (*self._sources.values(), *self._follow_ups.values()):
            query.close()

    def read(
        self, destination_topics: Iterable[str], source_topics: Iterable[tuple[MirrorRecord, Iterable[str]]]
    ) -> tuple[ClusterSnapshot, dict[str, ClusterSnapshot]]:
        """Return a snapshot of the destination's topics, and by mirror snapshots of the sources' topics.

        Raises:
            UnreachableError: the destination does not answer; trouble with a source is in its snapshot.
        """
        self._until = time.monotonic() + SOURCE_TIMEOUT_S
        queries = {}
        for mirror, topics in source_topics:
            query = queries[mirror.name] = _query(self._sources, mirror)
            query.start(partial(_read_source, topics=tuple(topics), cluster_id=mirror.source_cluster_id))
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            destination = _read_destination(self._destination.client, tuple(destination_topics))
        return destination, {name: _snapshot_of(query.answer(self._until)) for name, query in queries.items()}

    def ask_sources(
        self, questions: Sequence[tuple[MirrorRecord, Callable[[ClusterClient, float], Answer]]]
    ) -> dict[str, Answer]:
        """Send sources follow-up queries to the last read, by mirror; sources that do not answer in time are left out.

        A question is called with the client and the seconds that it has.
        """
        queries = {}
        for mirror, question in questions:
            seconds = max(_LEAST_REQUEST_S, self._until - time.monotonic())
            query = queries[mirror.name] = _query(self._follow_ups, mirror)
            query.start(partial(_ask, question, seconds))
        answers = {name: query.answer(self._until) for name, query in queries.items()}
        return {name: found for name, found in answers.items() if not isinstance(found, KmirrorError | None)}


def _ask(question: Callable[[ClusterClient, float], Answer], seconds: float, client: ClusterClient) -> Answer:
    return question(client, seconds)


def _query(known: dict[str, BackgroundQuery], mirror: MirrorRecord) -> BackgroundQuery:
    found = known.get(mirror.name)
    if found is None or found.properties != mirror.source:
        found = known[mirror.name] = BackgroundQuery(mirror.source, mirror.source_cluster_id)
    return found


def _snapshot_of(answer: ClusterSnapshot | KmirrorError | None) -> ClusterSnapshot:
    if isinstance(answer, ClusterSnapshot):
        return answer
    return ClusterSnapshot(
        now_ms(),
        trouble=answer
        or UnreachableError(
            f"the source does not answer within {SOURCE_TIMEOUT_S:g} s",
            "check that it is up and reachable from here",
            Reason.SOURCE_UNREACHABLE,
        ),
    )


class BackgroundQuery:
    """Query one source in a thread, so that the caller need not wait; its client waits `SOURCE_REQUEST_S` at most."""

    def __init__(self, properties: Mapping[str, str], cluster_id: str | None) -> None:
        self.properties = properties
        self._cluster_id = cluster_id
        self._client: ClusterClient | None = None
        self._thread: threading.Thread | None = None
        self._answer: Any = None
        self._lock = threading.Lock()
        self._running = False
        self._closed = False

    def start(self, question: Callable[[ClusterClient], Any]) -> None:
        """Start a query, unless the last one is still running."""
        if not self._running:
            self._running, self._answer = True, None
            self._thread = threading.Thread(target=self._run, args=(question,), name="kmirror-query", daemon=True)
            self._thread.start()

    def answer(self, until: float) -> Any:
        """Return the answer, the KmirrorError raised, or None if there is none by `until` (on `time.monotonic()`)."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self._answer

    def close(self) -> None:
        """Close the connections; a running query closes them when it ends."""
        with self._lock:
            self._closed = True
            if not self._running:
                self._close_client()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _run(self, question: Callable[[ClusterClient], Any]) -> None:
        try:
            if self._client is None:
                timeout_ms = int(SOURCE_REQUEST_S * 1000)
                config = client_config(self.properties).expecting(self._cluster_id, Reason.SOURCE_CLUSTER_CHANGED)
                self._client = ClusterClient(
                    replace(config, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)
                )
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self._answer = question(self._client)
        except KmirrorError as error:
            self._close_client()
            self._answer = error
        except RuntimeError:
            # Python starts no threads for a question once the program ends; nobody waits for this answer
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._running = False
                if self._closed:
                    self._close_client()


def _read_source(client: ClusterClient, topics: tuple[str, ...], cluster_id: str | None) -> ClusterSnapshot:
    until = time.monotonic() + SOURCE_REQUEST_S
    metadata = client.metadata(topics, timeout=SOURCE_REQUEST_S)
    require_same_cluster(cluster_id, metadata.cluster_id)
    remaining = max(_LEAST_REQUEST_S, until - time.monotonic())
    # the last stable offset first: it cannot exceed a high watermark that is read later
    lookups = [Lookup(LATEST, read_committed=True), Lookup(EARLIEST), Lookup(LATEST)]
    found = client.look_up_offsets(_led(metadata), lookups, metadata=metadata, timeout=remaining)
    last_stable, starts, ends = map(_known, found)
    return ClusterSnapshot(
        now_ms(), metadata.topics, log_start_offset=starts, last_stable_offset=last_stable, high_watermark=ends
    )


def _read_destination(client: ClusterClient, topics: tuple[str, ...]) -> ClusterSnapshot:
    metadata = client.metadata(topics, timeout=REACH_TIMEOUT_S)
    lookups = [Lookup(EARLIEST), Lookup(LATEST)]
    starts, ends = client.look_up_offsets(_led(metadata), lookups, metadata=metadata, timeout=_DESTINATION_TIMEOUT_S)
    return ClusterSnapshot(now_ms(), metadata.topics, log_start_offset=_known(starts), high_watermark=_known(ends))


def _led(metadata: ClusterMetadata) -> list[TopicPartition]:
    return [
        partition
        for topic in metadata.topics.values()
        for index in topic.partitions
        if metadata.leader(partition := TopicPartition(topic.name, index)) is not None
    ]


def _known(answers: Mapping[TopicPartition, OffsetAnswer]) -> Offsets:
    return {partition: answer.offset for partition, answer in answers.items() if answer.offset is not None}
