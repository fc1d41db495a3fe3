"""Observe a running world: what `describe` says, with the log ends of both clusters by librdkafka."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, OffsetSpec

from campaign.claims import Ends, Place, Sample, judge_group
from campaign.reading import COMMITTED, UNCOMMITTED, bounds, list_offsets

_ANSWER_S = 3.0
_EVERY_S = 5.0

Verb = Callable[..., tuple[int, str]]


class Watcher:
    """Samples what is reported of mirrors until asked to stop."""

    def __init__(self, verb: Verb, source: str, destination: str, places: Callable[[], Sequence[Place]]) -> None:
        self._verb, self._places = verb, places
        self._source, self._destination = source, destination
        self.samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with the sample that is being taken."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        places = list(self._places())
        at = time.monotonic()
        before = ends(self._source, places, committed=True), ends(self._destination, places)
        code, output = self._verb("describe", "--json")
        rows: list[dict[str, Any]] = json.loads(output) if code in {0, 4} and output.strip() else []
        after = ends(self._source, places, committed=True), ends(self._destination, places)
        return Sample(at, time.monotonic(), rows, before[0], after[0], before[1], after[1])


def ends(servers: str, places: Sequence[Place], *, committed: bool = False) -> Ends | None:
    """Return log ends, on request for consumers of committed records only; None where unknown within the time."""
    try:
        return list_offsets(servers, places, OffsetSpec.latest(), COMMITTED if committed else UNCOMMITTED, _ANSWER_S)
    except Exception:
        return None


def wait_group(source: str, destination: str, group: str, places: Sequence[Place], seconds: float) -> list[str]:
    """Return what is wrong with a group's offsets after at most this many seconds; with 0 it need not be quiet."""
    deadline = time.monotonic() + seconds
    while places:
        there, here = committed_offsets(destination, group), committed_offsets(source, group)
        starts, stops = bounds(destination, places)
        logs = {place: (starts[place], stops[place]) for place in places}
        wrong = judge_group(here, there, logs, quiet=seconds > 0)
        if seconds and not here:
            wrong = ["it has committed nothing at the source"]
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(1)
    return []


def committed_offsets(servers: str, group: str) -> dict[Place, int]:
    """Return what a group has committed.

    Raises:
        Exception: librdkafka's, when its coordinator does not answer in time.
    """
    deadline = time.monotonic() + 60
    while True:
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        try:
            (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
            found = answer.result(20).topic_partitions
            return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
