"""What is made of a topic or a whole source that cannot be looked at: gone, forbidden, refused, silent."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.identity_check import AT_DESTINATION, AT_SOURCE, TopicSide, topic_trouble
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.state.assignment import Assignment
from kmirror.status.topic_state import SourceTrouble, kind_of, link_trouble

SOURCE_ID, MIRROR_ID = b"\1" * 16, b"\2" * 16
ASSIGNMENT = Assignment(
    topic="a.orders",
    partition=0,
    source_topic="orders",
    source_topic_id=format_topic_id(SOURCE_ID),
    destination_topic_id=format_topic_id(MIRROR_ID),
    producer_id=1 << 62,
)
FORBIDDEN, UNKNOWN, GONE = (
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.UNKNOWN_TOPIC_ID,
)


@pytest.mark.parametrize(
    ("by_name", "by_id", "reason", "is_permanent"),
    [
        (UNKNOWN, GONE, Reason.SOURCE_TOPIC_DELETED, True),
        (UNKNOWN, None, Reason.SOURCE_TOPIC_DELETED, True),
        (FORBIDDEN, GONE, Reason.SOURCE_TOPIC_DELETED, True),
        (FORBIDDEN, FORBIDDEN, Reason.NOT_AUTHORIZED, True),
        (FORBIDDEN, None, Reason.NOT_AUTHORIZED, True),
        # what contradicts itself, or was not answered, is looked at again, for as long as it takes
        (UNKNOWN, Code.NONE, Reason.SOURCE_UNREACHABLE, False),
        (UNKNOWN, FORBIDDEN, Reason.SOURCE_UNREACHABLE, False),
        (FORBIDDEN, Code.NONE, Reason.SOURCE_UNREACHABLE, False),
        (UNKNOWN, Code.UNKNOWN_SERVER_ERROR, Reason.SOURCE_UNREACHABLE, False),
        (FORBIDDEN, Code.UNKNOWN_SERVER_ERROR, Reason.SOURCE_UNREACHABLE, False),
        (Code.LEADER_NOT_AVAILABLE, None, Reason.SOURCE_UNREACHABLE, False),
        (Code.UNKNOWN_SERVER_ERROR, None, Reason.SOURCE_UNREACHABLE, False),
    ],
)
def test_a_topic_is_gone_or_forbidden_by_its_id(
    by_name: int, by_id: int | None, reason: Reason, is_permanent: bool
) -> None:
    found = topic_trouble(AT_SOURCE, ASSIGNMENT, by_name, by_id)
    assert (found.reason, found.permanent_after_retries) == (reason, is_permanent)


@pytest.mark.parametrize(
    ("side", "by_id", "message"),
    [
        (
            AT_SOURCE,
            GONE,
            f"source topic orders ({format_topic_id(SOURCE_ID)}) no longer exists",
        ),
        (
            AT_DESTINATION,
            GONE,
            f"mirror topic a.orders ({format_topic_id(MIRROR_ID)}) no longer exists",
        ),
        (AT_DESTINATION, FORBIDDEN, "no right to DESCRIBE mirror topic a.orders"),
        (AT_SOURCE, None, "no right to DESCRIBE source topic orders, if there is one"),
    ],
)
def test_what_is_reported_of_it(side: TopicSide, by_id: int | None, message: str) -> None:
    assert topic_trouble(side, ASSIGNMENT, FORBIDDEN, by_id).message == message


def test_a_mirror_topic_that_is_gone_is_the_destinations() -> None:
    found = topic_trouble(AT_DESTINATION, ASSIGNMENT, UNKNOWN, GONE)
    assert found.reason is Reason.DESTINATION_TOPIC_DELETED


REFUSED = UnreachableError("no", None, Reason.AUTHENTICATION_FAILED)
SILENT = KmirrorError("no answer")


@pytest.mark.parametrize(
    ("reasons", "seen", "state"),
    [
        ([None, None], None, SourceTrouble.NONE),
        ([], None, SourceTrouble.NONE),
        ([None, Reason.NOT_AUTHORIZED], None, SourceTrouble.NONE),
        ([None, Reason.SOURCE_UNREACHABLE], None, SourceTrouble.NONE),
        ([Reason.SOURCE_UNREACHABLE] * 2, None, SourceTrouble.SILENT),
        ([None], SILENT, SourceTrouble.SILENT),
        ([None], REFUSED, SourceTrouble.REFUSED),
        ([Reason.SOURCE_UNREACHABLE, Reason.SOURCE_CLUSTER_CHANGED], SILENT, SourceTrouble.REFUSED),
    ],
)
def test_the_state_of_a_link(reasons: list[Reason | None], seen: KmirrorError | None, state: SourceTrouble) -> None:
    assert link_trouble(reasons, kind_of(seen)) is state
