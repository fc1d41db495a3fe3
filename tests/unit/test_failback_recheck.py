"""What a failback looks at again before it deletes anything: what is unknown is not taken for a change."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.list_offsets import OffsetAnswer
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.errors import KmirrorError, RefusedError, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.ops.failback.recheck import require_untouched

TOPIC_ID = bytes(range(16))
WORK = TopicWork("orders", TopicStep.SAVED, format_topic_id(TOPIC_ID), ends={0: 100})


@dataclass
class Cluster:
    """A cluster as its brokers describe it."""

    code: int = 0
    end: OffsetAnswer = field(default_factory=lambda: OffsetAnswer(0, 100, 0))

    def metadata(self, _: object) -> Any:
        found = TopicMetadata("orders", self.code, TOPIC_ID, False, {0: cast(Any, None)})
        return SimpleNamespace(topics={"orders": found})

    def list_offsets(self, wanted: Any, **_: object) -> dict[TopicPartition, OffsetAnswer]:
        return dict.fromkeys(wanted, self.end)


def look_at(cluster: Cluster) -> None:
    require_untouched(cast(Destination, SimpleNamespace(client=cluster)), WORK)


def test_a_topic_that_is_as_it_was_may_be_deleted() -> None:
    look_at(Cluster())


def test_what_another_client_did_is_refused() -> None:
    with pytest.raises(RefusedError, match="another client wrote to orders-0: it ended at 100, and ends at 101 now"):
        look_at(Cluster(end=OffsetAnswer(0, 101, 0)))
    with pytest.raises(RefusedError, match="orders was deleted"):
        look_at(Cluster(Code.UNKNOWN_TOPIC_OR_PARTITION))


def test_a_leader_that_is_away_is_no_client_that_wrote() -> None:
    with pytest.raises(UnreachableError, match="the log end of orders-0 here: LEADER_NOT_AVAILABLE"):
        look_at(Cluster(end=OffsetAnswer(Code.LEADER_NOT_AVAILABLE, None, -1)))


def test_a_topic_that_no_broker_describes_now_is_not_deleted() -> None:
    with pytest.raises(KmirrorError, match="the destination does not describe orders: BROKER_NOT_AVAILABLE"):
        look_at(Cluster(Code.BROKER_NOT_AVAILABLE))
