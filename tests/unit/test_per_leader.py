"""Answers of leaders are not lost because another leader does not answer until the time is up. No sockets."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kmirror.cluster.client import EARLIEST, ClusterClient, OffsetAnswer
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import UnreachableError

ANSWERS, SILENT = TopicPartition("t", 0), TopicPartition("t", 1)


class HalfCluster(ClusterClient):
    """A cluster of two brokers; the second does not answer, and later requests for metadata fail."""

    def __init__(self, first_answers: int) -> None:
        super().__init__(client_config({"bootstrap.servers": "a:1"}))
        self.left = first_answers

    def metadata(self, *_: Any, timeout: float | None = None, **__: Any) -> ClusterMetadata:
        if not self.left:
            time.sleep(timeout or 0)
            raise UnreachableError("no response from a:1: timed out", "check that the cluster is up")
        self.left -= 1
        partitions = {p: PartitionMetadata(p, 0, p + 1, 0, (1, 2), (1, 2)) for p in range(2)}
        topic = TopicMetadata("t", 0, bytes(16), False, partitions)
        return ClusterMetadata("A", 1, {1: Broker(1, "a", 1), 2: Broker(2, "b", 1)}, {"t": topic})

    def _ask_leader(self, *arguments: Any) -> None:
        answers, (node_id, led) = arguments[3], arguments[5]
        for partition in led:
            found = OffsetAnswer(0, 7, 0) if node_id == 1 else None
            answers[partition] = (0 if found else Code.BROKER_NOT_AVAILABLE, [found] if found else None)


def test_one_silent_leader_does_not_hide_the_others_answers() -> None:
    """`describe` knew nothing of a whole source when one of its brokers could not be reached."""
    found = HalfCluster(1).list_offsets({ANSWERS: EARLIEST, SILENT: EARLIEST}, timeout=0.3)
    assert (found[ANSWERS].offset, found[SILENT].error_code) == (7, Code.BROKER_NOT_AVAILABLE)


def test_a_cluster_that_does_not_answer_at_all_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        HalfCluster(0).list_offsets({ANSWERS: EARLIEST}, timeout=0.3)
