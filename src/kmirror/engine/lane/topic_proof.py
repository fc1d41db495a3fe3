"""Fetched by name: prove that it is of the topics that are meant, before any of it is taken. No I/O here.

Brokers before 3.1 are asked for topics by name, and answer for a topic that was deleted and created again as if it were
the same: neither offsets nor leader epochs tell, once it has as many records. So behind each fetch, on the same
connection, the broker is asked for the ids of the topics that it is expected to answer for, and behind the answer for
those that it did answer for besides. What is of another topic is taken for what a fetch by id would have told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kmirror.cluster.protocol import topic_ids
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchedPartition
from kmirror.cluster.protocol.wire import INT32

#: Answers are expected of as many topics at most; others are asked for when they have come.
_EXPECTED_TOPICS = 50

ProvenAnswer = tuple[FetchAnswer, memoryview]


class TopicProof:
    """Hold the answer to one fetch, and its frame, until the broker has named the ids of its topics."""

    def __init__(self, client_id: str, next_correlation_id: Callable[[], int]) -> None:
        self._client_id = client_id
        self._next_correlation_id = next_correlation_id
        #: What is asked behind the fetch under way, by correlation id; of earlier fetches, nothing counts any more.
        self._asked: dict[int, frozenset[str]] = {}
        self._outdated: set[int] = set()
        self._ids: dict[str, bytes | None] = {}
        self._expected: frozenset[str] = frozenset()
        self._held: ProvenAnswer | None = None

    def begin(self) -> list[bytes]:
        """Return what is to be sent right behind the next fetch."""
        self._outdated.update(self._asked)
        self._asked, self._ids = {}, {}
        return self._ask(self._expected)

    def expects(self, view: memoryview) -> bool:
        """Tell whether a frame answers one of our own requests."""
        correlation_id = INT32.unpack_from(view)[0]
        return correlation_id in self._asked or correlation_id in self._outdated

    def learn(self, view: memoryview) -> ProvenAnswer | None:
        """Take the ids that the broker names; return the answer to the fetch when nothing is missing any more."""
        correlation_id = INT32.unpack_from(view)[0]
        if correlation_id in self._outdated:
            self._outdated.discard(correlation_id)
            return None
        asked = self._asked.pop(correlation_id)
        self._ids |= dict.fromkeys(asked) | topic_ids.answer(view)
        return self._proven()

    def hold(self, answer: FetchAnswer, view: memoryview) -> tuple[ProvenAnswer | None, list[bytes]]:
        """Take the answer to the fetch; return it when it is proven already, or what is to be asked."""
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
        return [topic_ids.request(correlation_id, self._client_id, sorted(topics))]

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
