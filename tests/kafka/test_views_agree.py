"""One state, whatever shows it: `list`, `describe`, the page and its JSON, metrics, and the log of the run.

Once, a mirror topic that was deleted was FAILED in `describe`, ACTIVE with lag 0 in metrics and in the log, and there
was no event.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.driver.driver import COPYING, view_of
from kmirror.engine.lane import log_end_checks
from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.mirrors.recover import Consent, recover
from kmirror.ops.show.describe import describe
from kmirror.ops.show.events import events
from kmirror.ops.show.listing import list_mirrors
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, denial, give
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.leader import Leader, batch_of, create_topic, delete_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic as delete_source_topic
from tests.support.mirrors import make_topic, new_mirror, produce, selector
from tests.support.scraped import asking, assert_all_say, describing, value
from tests.support.waiting import wait_until

#: What each kind of trouble must be called, wherever it is shown: topic state, reason, lag.
Shown = tuple[str, str | None, int | None]
EXPECTED: Mapping[str, Shown] = {
    "well": ("ACTIVE", None, 0),
    "deleted": ("FAILED", "DESTINATION_TOPIC_DELETED", 5),
    "recreated": ("FAILED", "DESTINATION_TOPIC_DELETED", 6),
    "written": ("FAILED", "DESTINATION_WRITTEN", None),
    "forbidden": ("FAILED", "NOT_AUTHORIZED", 1),
    "vanished": ("FAILED", "SOURCE_TOPIC_DELETED", None),
}


@pytest.mark.slow
def test_every_view_shows_the_same_state(
    source_cluster: SandboxCluster, lenient_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end_checks, "CHECK_SECONDS", 0.5)
    source, there = source_cluster, lenient_cluster
    topics = {kind: unique_topic(kind) for kind in EXPECTED}
    for topic in topics.values():
        make_topic(source, topic)
        produce(source, topic, ["1", "2", "3", "4", "5"])
    with (
        Destination.open(there.client_properties("kmirror")) as destination,
        ClusterClient(client_config(there.client_properties())) as admin,
    ):
        mirror = new_mirror(destination, source, retry_timeout_ms="1000")
        assert add(destination, mirror, selector(*topics.values())).exit_code == 0
        with LocalEngine(destination, mirror) as local:
            local.catch_up()
            kinds = {topic: kind for kind, topic in topics.items()}
            views: dict[str, Callable[[], dict[str, Shown]]] = {
                "describe": lambda: _of_rows(kinds, describing(destination, mirror)()),
                "status.json": lambda: _of_rows(
                    kinds, json.loads(asking(local.service)("/status.json")[1])["partitions"]
                ),
                "log": lambda: {
                    kinds[view.topic]: (view.state, view.reason, None if view.lag_unknown else view.lag)
                    for view in view_of(local.engines, COPYING, 0.0).topics
                },
            }
            delete_topic(there, topics["deleted"])
            delete_topic(there, topics["recreated"])
            create_topic(there, name=topics["recreated"])
            produce(source, topics["recreated"], ["6"])
            with Leader(there, topics["written"]) as leader:
                leader.append_as_is(batch_of(3))
            give(admin, acls("topic", topics["forbidden"], "kmirror", "ALL"), [denial(topics["forbidden"], "kmirror")])
            produce(source, topics["forbidden"], ["6"])
            delete_source_topic(source, topics["vanished"])
            _wait_for(views, EXPECTED)
            (row,) = describe(destination, mirror, selector(topics["deleted"]))
            assert row.state_time_ms is not None
            assert "FAILED since " in (row.error_message or "")
            get, described = asking(local.service), describing(destination, mirror)
            assert_all_say(get, described, lambda summed: summed["topics"] == {"ACTIVE": 1, "FAILED": 5})
            # what recover cannot mend is refused at once, and the consent that is needed is named
            refused = recover(destination, mirror, selector(topics["deleted"]))
            assert (refused.exit_code, refused.results[0].result) == (ExitCode.REFUSED, Outcome.REFUSED)
            assert "kmirror add --mirror" in (refused.results[0].hint or "")
            (written,) = recover(destination, mirror, selector(topics["written"]), Consent(loss=True)).results
            assert f"{topics['written']}-0 needs --accept-divergence, not --accept-loss: " in (written.message or "")
            (listed,) = [one for one in list_mirrors(destination) if one.mirror == mirror]
            assert (listed.state, listed.max_lag) == (TopicState.FAILED, 6)
            failures = {(kind, reason) for kind, (state, reason, _) in EXPECTED.items() if state == "FAILED"}
            wait_until(
                lambda: (
                    failures
                    == {
                        (kinds[event.details["topic"]], event.details["reason"])
                        for event in events(destination, mirror).events
                        if (event.what, event.result) == ("partition", "FAILED")
                    }
                )
            )
        # the consent to delete and rebuild a topic is in the events, and whose it is
        given = selector(topics["written"]), Consent(divergence=True)
        shown = recover(destination, mirror, *given, dry_run=True).results
        (unseen,) = recover(destination, mirror, *given, shown=()).results
        assert (unseen.result, unseen.hint) == (Outcome.REFUSED, "run it again to see what it accepts now")
        recover(destination, mirror, *given, shown=shown)
        (asked,) = [event for event in events(destination, mirror).events if event.result == "REQUESTED"]
        assert (asked.details["accepted"], asked.details["rebuilds"]) == ([], [topics["written"]])


def test_the_lag_of_a_paused_mirror_is_in_its_metrics(cluster_pair: ClusterPair, destination: Destination) -> None:
    source, topic = cluster_pair.source, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["1", "2"])
    mirror = new_mirror(destination, source, refresh_interval_seconds="1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as local:
        local.catch_up()
        assert pause(destination, mirror).exit_code == 0
        produce(source, topic, ["3", "4", "5"])
        get, described = asking(local.service), describing(destination, mirror)
        samples = assert_all_say(get, described, lambda summed: summed["lag"] == {topic: 3})
        assert value(samples, "kmirror_topics", mirror=mirror, state="PAUSED") == 1
    # another engine knows it too, which never copied anything
    with LocalEngine(destination, mirror) as local:
        get = asking(local.service)
        wait_until(lambda: json.loads(get("/status.json")[1])["partitions"] is not None)
        assert_all_say(get, described, lambda summed: summed["lag"] == {topic: 3})


def _of_rows(kinds: Mapping[str, str], rows: list[dict[str, Any]]) -> dict[str, Shown]:
    return {
        kinds[row["topic"]]: (row["topicState"], row["reason"], row["lag"]) for row in rows if row["topic"] in kinds
    }


def _wait_for(views: Mapping[str, Callable[[], Mapping[str, Shown]]], expected: Mapping[str, Shown]) -> None:
    """Wait until each view shows what is expected."""
    for name, view in views.items():
        with contextlib.suppress(AssertionError):
            wait_until(partial(_is, view, expected))
        assert (name, view()) == (name, expected)


def _is(view: Callable[[], Mapping[str, Shown]], expected: Mapping[str, Shown]) -> bool:
    return view() == expected
