"""Prove that data fetched by topic name belongs to the expected topics, before any of it is used. No I/O.

Brokers before 3.1 are asked for topics by name, and answer for a topic that was deleted and created again as if it were
the same: neither offsets nor leader epochs reveal that, once it has as many records. So each fetch is followed, on the
same connection, by a request for the ids of the topics that the response is expected to name, and if it names others,
by a request for theirs. Data of another topic becomes the error that a fetch by id would have returned.

A broker answers the requests of one connection in turn. So if Metadata returns the same id before and after a fetch by
name, the records in between are of that topic: an id is never used twice. A leader that has a new topic's log has
dropped the old topic's metadata first, and so never returns the old id then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kmirror.cluster.protocol import metadata
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchedPartition
from kmirror.cluster.protocol.wire import INT32

#: The most topics to ask for ahead; others are asked for when the response has come.
_EXPECTED_TOPICS = 50

ProvenAnswer = tuple[FetchAnswer, memoryview]


class TopicProof:
    """Hold the response to one fetch, and its frame, until the broker has named the ids of its topics."""

    def __init__(self, client_id: str, next_correlation_id: Callable[[], int]) -> None:
        self._client_id = client_id
        self._next_correlation_id = next_correlation_id
        #: By correlation id, the topics asked for with the current fetch; and requests of earlier ones, now ignored.
        self._asked: dict[int, frozenset[str]] = {}
        self._outdated: set[int] = set()
        self._ids: dict[str, bytes | None] = {}
        self._expected: frozenset[str] = frozenset()
        self._held: ProvenAnswer | None = None

    def begin(self) -> list[bytes]:
        """Return the requests to send right behind the next fetch."""
        self._outdated.update(self._asked)
        self._asked, self._ids = {}, {}
        return self._ask(self._expected)

    def expects(self, view: memoryview) -> bool:
        """Return True if a frame is the response to one of our own requests."""
        correlation_id = INT32.unpack_from(view)[0]
        return correlation_id in self._asked or correlation_id in self._outdated

    def learn(self, view: memoryview) -> ProvenAnswer | None:
        """Take topic ids of the broker; return the response to the fetch if it is now proven."""
        correlation_id = INT32.unpack_from(view)[0]
        if correlation_id in self._outdated:
            self._outdated.discard(correlation_id)
            return None
        asked = self._asked.pop(correlation_id)
        found, _ = metadata.answer(view, metadata.FIRST_VERSION_WITH_TOPIC_IDS)
        ids = {topic.name: None if topic.error_code else topic.topic_id for topic in found.topics.values()}
        self._ids |= dict.fromkeys(asked) | ids
        return self._proven()

    def hold(self, answer: FetchAnswer, view: memoryview) -> tuple[ProvenAnswer | None, list[bytes]]:
        """Take the response to the fetch; return it if it is already proven, and the requests to send."""
        with_records = [part.key.topic for part in answer.partitions if len(part.records)]
        if with_records:
            self._expected = frozenset(with_records[:_EXPECTED_TOPICS])
        self._held = answer, view
        missing = _topics(answer).difference(self._ids, *self._asked.values())
        return self._proven(), self._ask(missing)

    def _ask(self, topics: frozenset[str]) -> list[bytes]:
        if not topics:
            return []
        correlation_id = self._next_correlation_id()
        self._asked[correlation_id] = topics
        version = metadata.FIRST_VERSION_WITH_TOPIC_IDS
        return [metadata.request(correlation_id, version, self._client_id, sorted(topics))]

    def _proven(self) -> ProvenAnswer | None:
        if self._held is None or not _topics(self._held[0]) <= self._ids.keys():
            return None
        (answer, view), self._held = self._held, None
        return replace(answer, partitions=[self._part(part) for part in answer.partitions]), view

    def _part(self, part: FetchedPartition) -> FetchedPartition:
        if part.error_code or self._ids[part.key.topic] == part.key.topic_id:
            return part
        return replace(part, error_code=int(Code.UNKNOWN_TOPIC_ID), records=part.records[:0], diverging_epoch=None)


def _topics(answer: FetchAnswer) -> frozenset[str]:
    return frozenset(part.key.topic for part in answer.partitions if not part.error_code)
