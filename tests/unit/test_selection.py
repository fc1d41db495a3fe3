"""Which mirror topics a command is for: what it names must be there, and is never dropped without a word."""

from __future__ import annotations

import pytest

from kmirror.errors import RefusedError
from kmirror.ops.base.selection import select_topics
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord

TOPICS = [
    TopicRecord("m", f"eu.{name}", name, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
    for name in ("orders", "payments", "clicks")
]


def names(topics: str | None, exclude: str | None = None, *, each: bool = True) -> list[str]:
    """Return the names of the selected topics."""
    selectors = [None if text is None else TopicSelector.parse([text]) for text in (topics, exclude)]
    return [topic.topic for topic in select_topics(TOPICS, selectors[0], "of mirror m", selectors[1], each=each)]


@pytest.mark.parametrize(
    ("topics", "exclude", "selected"),
    [
        (None, None, ["eu.clicks", "eu.orders", "eu.payments"]),
        ("eu[.]o.*,eu.clicks", None, ["eu.clicks", "eu.orders"]),
        (None, "eu.orders,eu[.]c.*", ["eu.payments"]),
        ("eu.orders", "eu.payments", ["eu.orders"]),
        (".*", ".*", []),
    ],
)
def test_topics_are_selected_and_excluded(topics: str | None, exclude: str | None, selected: list[str]) -> None:
    assert names(topics, exclude) == selected


@pytest.mark.parametrize(
    ("topics", "exclude", "message", "hint"),
    [
        ("eu.ordres", None, "eu.ordres: no such mirror topic of mirror m", "did you mean eu.orders?"),
        ("zzz", None, "zzz: no such mirror topic of mirror m", "`kmirror describe` lists the mirror topics"),
        ("eu.orders,eu[.]v.*", None, "no mirror topic of mirror m matches eu[.]v.*", "each pattern must match"),
        (None, "orders", "orders: no such mirror topic of mirror m to exclude", "did you mean eu.orders?"),
        (None, "eu.orders,orders.*", "no mirror topic of mirror m to exclude matches orders.*", "each pattern must"),
        ("eu.orders,clicks # the big one", None, "matches clicks # the big one", "in a file, comments are lines of"),
    ],
)
def test_what_is_not_there_is_refused(topics: str | None, exclude: str | None, message: str, hint: str) -> None:
    with pytest.raises(RefusedError) as refused:
        names(topics, exclude)
    assert refused.value.message.endswith(message)
    assert (refused.value.hint or "").startswith(hint)


def test_a_view_takes_expressions_that_match_nothing_yet_beside_others() -> None:
    assert names("eu.orders,eu[.]v.*", each=False) == ["eu.orders"]
    with pytest.raises(RefusedError, match=r"matches eu\[\.\]v\.\*"):
        names("eu[.]v.*", each=False)
