"""The JSON filters of Confluent's links: read, refused, matched."""

from __future__ import annotations

import json
import pickle
import random

import pytest

from kmirror.errors import UsageError
from kmirror.settings.topic_filters import TopicFilters


def document(*filters: tuple[str, str, str]) -> str:
    names = ("name", "patternType", "filterType")
    return json.dumps({"topicFilters": [dict(zip(names, one, strict=True)) for one in filters]})


def filters(*entries: tuple[str, str, str]) -> TopicFilters:
    return TopicFilters.parse("key", document(*entries))


ALL = ("*", "LITERAL", "INCLUDE")
TOPICS = ["orders", "orders-1", "pay", "x"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([ALL], TOPICS),
        ([("orders", "LITERAL", "INCLUDE")], ["orders"]),
        ([("orders", "PREFIXED", "INCLUDE")], ["orders", "orders-1"]),
        ([ALL, ("orders", "PREFIXED", "EXCLUDE")], ["pay", "x"]),
        ([ALL, ("orders", "LITERAL", "EXCLUDE")], ["orders-1", "pay", "x"]),
        ([("orders-1", "LITERAL", "INCLUDE"), ("orders", "PREFIXED", "EXCLUDE")], []),
        ([ALL, ("*", "LITERAL", "EXCLUDE")], []),
        ([("orders", "PREFIXED", "EXCLUDE")], []),
    ],
)
def test_a_topic_is_taken_when_included_and_not_excluded_in_any_order(
    entries: list[tuple[str, str, str]], expected: list[str]
) -> None:
    for _ in range(4):
        assert [topic for topic in TOPICS if filters(*entries).matches(topic)] == expected
        random.shuffle(entries)


def test_what_is_written_reads_the_same_again() -> None:
    found = filters(ALL, ("prénoms", "PREFIXED", "EXCLUDE"))
    assert TopicFilters.parse("key", str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found
    assert str(TopicFilters.parse("key", "")) == ""
    assert found.names == ()
    assert filters(("a", "LITERAL", "INCLUDE"), ("b", "LITERAL", "EXCLUDE")).names == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[]", "it is not a JSON object"),
        ("{}", "the document lacks topicFilters"),
        ('{"topicfilters":[]}', "unknown field topicfilters, is topicFilters meant?"),
        ('{"topicFilters":{}}', "topicFilters is not a list"),
        ('{"topicFilters":["orders"]}', "filter 1 is not a JSON object"),
        ('{"topicFilters":[],"topicFilters":[]}', "a field is given twice"),
        ('{"topicFilters":[{"name":"a","patternType":"LITERAL"}]}', "filter 1 lacks filterType"),
        ('{"topicFilters":[{"name":"a","patternTyp":"LITERAL","filterType":"INCLUDE"}]}', "is patternType meant?"),
        (document(ALL, ("", "LITERAL", "INCLUDE")), "filter 2 has no name"),
        (document(("a", "REGEX", "INCLUDE")), "patternType=REGEX is not LITERAL or PREFIXED"),
        (document(("a", "LITERAL", "ALLOW")), "filterType=ALLOW is not INCLUDE or EXCLUDE"),
        (document(("*", "PREFIXED", "INCLUDE")), "* means everything only if it is LITERAL"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        TopicFilters.parse("auto.create.mirror.topics.filters", text)
    assert refusal.value.message.startswith("auto.create.mirror.topics.filters: ")
    assert message in refusal.value.message
    assert "topicFilters" in (refusal.value.hint or "")
