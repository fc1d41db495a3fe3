"""Which topics discovery takes."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.settings.parsing import parse_settings
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord
from kmirror.sync.discovery import is_deleted, new_source_topics

ALL = parse_settings({"topics.include": ".*"})


def found(*names: str, error: int = 0, internal: bool = False) -> dict[str, TopicMetadata]:
    return {name: TopicMetadata(name, error, bytes(16), internal, {}) for name in names}


def known(source_topic: str, desired: DesiredState = DesiredState.ACTIVE, pending: str | None = None) -> TopicRecord:
    return TopicRecord("m", f"p.{source_topic}", source_topic, "S", "D", desired, 1, TopicOrigin.CREATED, pending)


def test_topics_that_the_filters_match_and_that_are_not_mirrored_yet_are_new() -> None:
    settings = parse_settings({"topics.include": "orders.*,pay", "topics.exclude": "orders-x"})
    topics = found("orders-1", "orders-2", "orders-x", "pay", "payments")
    assert new_source_topics(settings, topics, [known("orders-2")]).topics == ("orders-1", "pay")


@pytest.mark.parametrize("desired", list(DesiredState))
def test_a_topic_that_was_mirrored_once_is_not_new_whatever_became_of_it(desired: DesiredState) -> None:
    assert new_source_topics(ALL, found("t"), [known("t", desired)]).topics == ()


def test_internal_topics_archives_and_kmirrors_own_are_never_taken() -> None:
    topics = {
        **found("__consumer_offsets", internal=True),
        **found("__kmirror_state", "__kmirror_events", "orders.kmirror-archive.1", "_schemas"),
    }
    assert new_source_topics(ALL, topics, []).topics == ("_schemas",)


def test_a_topic_that_may_not_be_described_is_reported() -> None:
    settings = parse_settings({"topics.include": "secret"})
    hidden = found("secret", "other", error=Code.TOPIC_AUTHORIZATION_FAILED)
    assert new_source_topics(settings, hidden, []).hidden == ("secret",)
    gone = found("secret", error=Code.UNKNOWN_TOPIC_OR_PARTITION)
    assert new_source_topics(settings, gone, []).hidden == new_source_topics(settings, gone, []).topics == ()


def test_without_filters_nothing_is_discovered() -> None:
    assert not Settings().discovers
    assert new_source_topics(Settings(), found("t"), []).topics == ()


def test_only_an_active_topic_whose_name_is_free_is_recreated() -> None:
    gone = found("p.t", error=Code.UNKNOWN_TOPIC_OR_PARTITION)["p.t"]
    assert is_deleted(known("t"), gone)
    assert not is_deleted(known("t"), found("p.t")["p.t"])
    assert not is_deleted(known("t"), None)
    assert not is_deleted(known("t", DesiredState.STOPPED), gone)
    assert not is_deleted(known("t", pending="rebuild"), gone)
