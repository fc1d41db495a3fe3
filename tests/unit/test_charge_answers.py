"""What a balancer's health check is answered: yes for at most one cluster, and no to a question that is not clear."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from kmirror.errors import Reason
from kmirror.ops.show import charge_keeper
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror.web.charge_answers import all_in_charge, in_charge_answer
from kmirror.web.requests import BadRequestError, HttpRequest

MIRROR = MirrorRecord("m/é", {}, {}, "id-a", "ops@host", 0)
COPIED = TopicRecord("m/é", "orders", "orders", None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
STOPPED = replace(COPIED, desired=DesiredState.STOPPED, stop_reason=Reason.FAILED_OVER)


class Site:
    """A keeper of clusters, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.at = 100.0
        monkeypatch.setattr(charge_keeper, "now", lambda: self.at)
        self.keeper = ChargeKeeper(names)

    def see(self, seconds: float, **topics: TopicRecord | None) -> None:
        """Let time pass, in which these clusters are read twice a second; a has no mirror."""
        for _ in range(round(seconds * 2)):
            self.at += 0.5
            for name, topic in topics.items():
                state = State() if topic is None else State.of([MIRROR, topic])
                self.keeper.take(name, f"id-{name[0]}", f"{name}:9092", state, self.at)

    def ask(self, query: str, mirror: str = "m%2F%C3%A9") -> tuple[int, dict[str, Any]]:
        found = in_charge_answer(self.keeper, HttpRequest.of(f"/in-charge/{mirror}?{query}", ""))
        return int(found.status), json.loads(found.body)

    def statuses(self, more: str = "") -> tuple[int, int]:
        return self.ask(f"cluster=a{more}")[0], self.ask(f"cluster=b{more}")[0]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch, "a", "b")


def test_the_cluster_in_charge_gets_200_and_the_other_503(site: Site) -> None:
    assert site.statuses() == (503, 503)
    site.see(5, a=None, b=COPIED)
    assert site.statuses() == (200, 503)
    site.see(2, a=None, b=STOPPED)
    assert site.statuses() == (503, 503)
    site.see(3, a=None, b=STOPPED)
    assert site.statuses() == (503, 200)
    _, document = site.ask("cluster=b")
    assert (document["clusterId"], document["bootstrapServers"], document["inCharge"]) == ("id-b", "b:9092", True)
    assert document["asOf"] is not None
    assert [one["inCharge"] for one in json.loads(all_in_charge(site.keeper).body)] == [False, True]


def test_one_topic_may_be_asked_for(site: Site) -> None:
    site.see(5, a=None, b=COPIED)
    assert site.ask("cluster=a&topic=orders")[0] == 200
    assert site.ask("cluster=a&topic=clicks")[0] == 503
    assert site.ask("cluster=a", mirror="other")[0] == 503


def test_where_that_is_not_certain_the_last_certain_answer_may_be_asked_for(site: Site) -> None:
    last = "&unsure=last"
    site.see(5, a=None, b=COPIED)
    assert site.statuses(last) == (200, 503)
    site.see(20, a=None)
    assert site.statuses() == (503, 503)
    assert site.statuses(last) == (200, 503)
    reason = site.ask(f"cluster=a{last}")[1]["reason"]
    assert reason == "as last known, because now orders: the state of b has not been read for more than 3 s"
    site.see(5, a=None, b=STOPPED)
    assert site.statuses(last) == (503, 200)
    # both cannot be read: b was the last
    site.see(10)
    site.at += 10
    assert site.statuses(last) == (503, 200)


def test_what_changed_while_it_was_not_asked_about_is_not_forgotten(site: Site) -> None:
    last = "&unsure=last"
    site.see(5, a=None, b=COPIED)
    assert site.statuses(last) == (200, 503)
    site.see(6, b=STOPPED)
    site.at += 20
    assert site.statuses(last) == (503, 200)


def test_a_yes_that_waits_for_the_lock_is_judged_after_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class HeldForLong(nullcontext[None]):
        def __enter__(self) -> None:
            site.at += 2

    site.see(5, a=None, b=COPIED)
    assert site.statuses() == (200, 503)
    monkeypatch.setattr(site.keeper, "_lock", HeldForLong())
    assert site.statuses() == (503, 503)


def test_a_process_that_has_never_been_certain_says_no(site: Site) -> None:
    site.see(5, a=None)
    assert site.statuses("&unsure=last") == (503, 503)
    site.see(1, a=None, b=COPIED)
    status, found = site.ask("cluster=a&unsure=last")
    assert (status, found["inCharge"]) == (503, None)
    assert found["reason"] == "orders: it is copied from here to b, seen for less than 3.5 s"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", HTTPStatus.BAD_REQUEST),
        ("cluster=a&unsure=keep", HTTPStatus.BAD_REQUEST),
        ("cluster=a&topics=orders", HTTPStatus.BAD_REQUEST),
        ("cluster=c", HTTPStatus.NOT_FOUND),
    ],
)
def test_an_unclear_question_is_no_yes(site: Site, query: str, status: HTTPStatus) -> None:
    site.see(5, a=None, b=COPIED)
    with pytest.raises(BadRequestError) as refused:
        site.ask(query)
    assert refused.value.status is status


def test_an_engine_does_not_answer_it() -> None:
    for ask in (lambda: all_in_charge(None), lambda: in_charge_answer(None, HttpRequest.of("/in-charge/m", ""))):
        asked: Callable[[], object] = ask
        with pytest.raises(BadRequestError, match="kmirror serve"):
            asked()


def test_the_only_cluster_need_not_be_named() -> None:
    keeper = ChargeKeeper(("b",))
    assert json.loads(in_charge_answer(keeper, HttpRequest.of("/in-charge/m", "")).body)["cluster"] == "b"


def test_both_names_of_a_cluster_get_its_last_certain_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, "a", "b", "b-again")
    site.see(5, a=None, b=STOPPED, **{"b-again": STOPPED})
    site.at += 20
    asked = {name: site.ask(f"cluster={name}&unsure=last")[0] for name in site.keeper.names}
    assert asked == {"a": 503, "b": 503, "b-again": 503}, "it was not asked before"
    site.see(5, a=None, b=STOPPED, **{"b-again": STOPPED})
    site.at += 20
    asked = {name: site.ask(f"cluster={name}&unsure=last")[0] for name in site.keeper.names}
    assert asked == {"a": 503, "b": 200, "b-again": 200}


def test_what_is_stored_nowhere_is_answered_and_not_remembered(site: Site) -> None:
    site.see(5, a=None, b=COPIED)
    for number in range(50):
        status, found = site.ask(f"cluster=a&topic=t{number}")
        assert (status, found["inCharge"]) == (503, None)
        assert f"not known as an end of topic t{number} of mirror m/é" in found["reason"]
        assert site.ask("cluster=a", mirror=f"m{number}")[0] == 503
    assert not site.keeper._asked
    assert site.ask("cluster=a&topic=orders")[0] == 200
    assert len(site.keeper._asked) == 1


def test_a_question_that_is_not_asked_any_more_is_forgotten(site: Site) -> None:
    last = "&unsure=last"
    site.see(5, a=None, b=COPIED)
    assert site.ask(f"cluster=a&topic=orders{last}")[0] == 200
    for _ in range(70):
        site.see(10, a=None, b=COPIED)
        assert site.statuses(last) == (200, 503)
    assert [topic for _, topic in site.keeper._asked] == [None]
    site.at += 20
    assert site.statuses(last) == (200, 503)
    assert site.ask(f"cluster=a&topic=orders{last}")[0] == 503, "what is forgotten is no yes"


def test_the_last_certain_answer_is_known_for_as_many_topics_as_are_asked_for(site: Site) -> None:
    topics = {f"t{number}": replace(COPIED, topic=f"t{number}", source_topic=f"t{number}") for number in range(300)}
    state = State.of([MIRROR, *topics.values()])
    for _ in range(10):
        site.see(0.5, a=None)
        site.keeper.take("b", "id-b", "b:9092", state, site.at)
    for topic in topics:
        assert site.statuses(f"&topic={topic}&unsure=last") == (200, 503)
    site.at += 20
    for topic in topics:
        assert site.statuses(f"&topic={topic}&unsure=last") == (200, 503)
        assert site.ask(f"cluster=b&topic={topic}&unsure=last")[1]["reason"].startswith("as last known, because now ")


def test_it_is_said_why_what_a_cluster_answers_does_not_count(site: Site) -> None:
    site.see(5, a=None, b=COPIED)
    site.keeper.doubt("b", "who leads it is not certain")
    assert site.statuses() == (200, 503), "what was read before still counts for a moment"
    site.see(5, a=None)
    status, found = site.ask("cluster=a")
    assert (status, found["inCharge"]) == (503, None)
    assert "b has not been read for more than 3 s: who leads it is not certain" in found["reason"]
    site.see(5, a=None, b=COPIED)
    assert site.statuses() == (200, 503)
    assert "not certain" not in site.ask("cluster=a")[1]["reason"]
