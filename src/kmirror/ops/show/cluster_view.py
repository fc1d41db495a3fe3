"""One look at both clusters: where every log starts and ends now. Reads only, and never waits long for a source.

The destination is asked in the caller's thread, each source in one of its own, so that a source that is down costs
`SOURCE_PATIENCE_S` and nothing else. A source that did not answer in time is left to its thread and asked again at the
next look, when that thread has come back.

What a look makes one ask further (`Prober.ask_further`) is asked in time that the look has left, over connections of
its own: an answer to it that does not come never spoils a look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, OffsetAnswer
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.context import REACH_TIMEOUT_S, Destination, naming_cluster, now_ms, require_same_cluster
from kmirror.state.records import MirrorRecord

#: How long a look waits for a source.
SOURCE_PATIENCE_S = 3.0
#: How long the source's brokers may take, so that what some of them say arrives although others are silent.
ASKING_S = SOURCE_PATIENCE_S - 0.5
#: Less than this is as good as no time at all.
_SHORTEST_ASKING_S = 0.1
_DESTINATION_PATIENCE_S = 5.0

Offsets = Mapping[TopicPartition, int]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What one cluster said at `time_ms`; with `trouble` it said nothing.

    A partition missing from a mapping has no leader now, or may not be seen. `last_stable_offset` and
    `high_watermark` are asked of sources, `log_end_offset` (the true one) of the destination.
    """

    time_ms: int
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    log_start_offset: Offsets = field(default_factory=dict)
    last_stable_offset: Offsets = field(default_factory=dict)
    high_watermark: Offsets = field(default_factory=dict)
    log_end_offset: Offsets = field(default_factory=dict)
    #: When a partition's ends were seen, where that was at another time than `time_ms`.
    seen_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    trouble: KmirrorError | None = None


class Prober:
    """Look at a destination and the sources of its mirrors, again and again; `close` it in the end."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._sources: dict[str, Asker] = {}
        self._further: dict[str, Asker] = {}
        self._until = 0.0

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections to the sources."""
        for asker in (*self._sources.values(), *self._further.values()):
            asker.close()

    def look(
        self, destination_topics: Iterable[str], source_topics: Iterable[tuple[MirrorRecord, Iterable[str]]]
    ) -> tuple[ClusterLook, dict[str, ClusterLook]]:
        """Return what the destination says of its topics, and by mirror what the sources say of theirs.

        Raises:
            UnreachableError: the destination does not answer; trouble with a source is told in its look.
        """
        self._until = time.monotonic() + SOURCE_PATIENCE_S
        asked = {}
        for mirror, topics in source_topics:
            asker = asked[mirror.name] = _asker(self._sources, mirror)
            asker.start(partial(_look_at_source, topics=tuple(topics), cluster_id=mirror.source_cluster_id))
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            destination = _look_at_destination(self._destination.client, tuple(destination_topics))
        return destination, {name: _look_of(asker.answer(self._until)) for name, asker in asked.items()}

    def ask_further(
        self, questions: Sequence[tuple[MirrorRecord, Callable[[ClusterClient, float], Answer]]]
    ) -> dict[str, Answer]:
        """Ask sources, by mirror, what the look just made gives rise to; who does not answer in time is left out.

        A question is given the client to ask and the seconds it has.
        """
        asked = {}
        for mirror, question in questions:
            patience_s = max(_SHORTEST_ASKING_S, self._until - time.monotonic())
            asker = asked[mirror.name] = _asker(self._further, mirror)
            asker.start(partial(_ask, question, patience_s))
        answers = {name: asker.answer(self._until) for name, asker in asked.items()}
        return {name: found for name, found in answers.items() if not isinstance(found, KmirrorError | None)}


def _ask(question: Callable[[ClusterClient, float], Answer], patience_s: float, client: ClusterClient) -> Answer:
    return question(client, patience_s)


def _asker(known: dict[str, Asker], mirror: MirrorRecord) -> Asker:
    found = known.get(mirror.name)
    if found is None or found.properties != mirror.source:
        found = known[mirror.name] = Asker(mirror.source)
    return found


def _look_of(answer: ClusterLook | KmirrorError | None) -> ClusterLook:
    if isinstance(answer, ClusterLook):
        return answer
    return ClusterLook(
        now_ms(),
        trouble=answer
        or UnreachableError(
            f"the source does not answer within {SOURCE_PATIENCE_S:g} s",
            "check that it is up and reachable from here",
            Reason.SOURCE_UNREACHABLE,
        ),
    )


class Asker:
    """Ask one source in a thread, so that nothing has to wait for it; its client waits `ASKING_S` at most."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties
        self._client: ClusterClient | None = None
        self._thread: threading.Thread | None = None
        self._answer: Any = None
        self._lock = threading.Lock()
        self._asking = False
        self._closed = False

    def start(self, question: Callable[[ClusterClient], Any]) -> None:
        """Begin to ask, unless the last question has not come back yet."""
        if not self._asking:
            self._asking, self._answer = True, None
            self._thread = threading.Thread(target=self._run, args=(question,), name="kmirror-look", daemon=True)
            self._thread.start()

    def answer(self, until: float) -> Any:
        """Return the answer, a KmirrorError that came instead, or None when none came by `until` (CLOCK_MONOTONIC)."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self._answer

    def close(self) -> None:
        """Let go of the connections; a question under way does so when it comes back."""
        with self._lock:
            self._closed = True
            if not self._asking:
                self._close_client()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _run(self, question: Callable[[ClusterClient], Any]) -> None:
        try:
            if self._client is None:
                patience_ms = int(ASKING_S * 1000)
                config = client_config(self.properties)
                self._client = ClusterClient(
                    replace(config, connect_timeout_ms=patience_ms, request_timeout_ms=patience_ms)
                )
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self._answer = question(self._client)
        except KmirrorError as error:
            self._close_client()
            self._answer = error
        finally:
            with self._lock:
                self._asking = False
                if self._closed:
                    self._close_client()


def _look_at_source(client: ClusterClient, topics: tuple[str, ...], cluster_id: str | None) -> ClusterLook:
    until = time.monotonic() + ASKING_S
    metadata = client.metadata(topics, timeout=ASKING_S)
    require_same_cluster(cluster_id, metadata.cluster_id)
    led = _led(metadata)

    def ask(timestamp: int, *, read_committed: bool = False) -> Offsets:
        remaining = max(_SHORTEST_ASKING_S, until - time.monotonic())
        wanted = dict.fromkeys(led, timestamp)
        return _known(client.list_offsets(wanted, read_committed=read_committed, timeout=remaining))

    # the last stable offset first: it never passes a high watermark that was asked for later
    last_stable = ask(LATEST, read_committed=True)
    return ClusterLook(
        now_ms(),
        metadata.topics,
        log_start_offset=ask(EARLIEST),
        last_stable_offset=last_stable,
        high_watermark=ask(LATEST),
    )


def _look_at_destination(client: ClusterClient, topics: tuple[str, ...]) -> ClusterLook:
    metadata = client.metadata(topics, timeout=REACH_TIMEOUT_S)
    led = _led(metadata)
    starts = client.list_offsets(dict.fromkeys(led, EARLIEST), timeout=_DESTINATION_PATIENCE_S)
    ends = client.list_offsets(dict.fromkeys(led, LATEST), log_end=True, timeout=_DESTINATION_PATIENCE_S)
    return ClusterLook(now_ms(), metadata.topics, log_start_offset=_known(starts), log_end_offset=_known(ends))


def _led(metadata: ClusterMetadata) -> list[TopicPartition]:
    return [
        partition
        for topic in metadata.topics.values()
        for index in topic.partitions
        if metadata.leader(partition := TopicPartition(topic.name, index)) is not None
    ]


def _known(answers: Mapping[TopicPartition, OffsetAnswer]) -> Offsets:
    return {partition: answer.offset for partition, answer in answers.items() if answer.offset is not None}
