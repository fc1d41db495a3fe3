"""A source that accepts connections and answers nothing: nothing says how far behind the copy is, but for what it was.

The lanes are threads of the test; the source is a real broker, frozen.
"""

from __future__ import annotations

import json
import signal

import pytest

from kmirror.engine.clock import now
from kmirror.engine.driver.driver import COPYING, view_of
from kmirror.engine.lanes import lanes
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror.state.history_records import points_of
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus
from kmirror.web.report_facts import report_facts
from kmirror.web.report_page import page
from kmirror.web.report_summary import period_of, summary
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import freeze, unique_topic
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.page_script import drawn
from tests.support.scraped import asking, assert_all_say, describing, value
from tests.support.strict_html import StrictHtml
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_a_source_that_hangs_leaves_no_lag_but_the_last_known_one(
    destination_cluster: SandboxCluster, mortal_cluster: SandboxCluster
) -> None:
    source, topic = mortal_cluster, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one", "two"])
    with Destination.open(properties_of(destination_cluster)) as destination:
        mirror = new_mirror(destination, source)
        assert add(destination, mirror, selector(topic)).exit_code == ExitCode.OK
        with LocalEngine(destination, mirror) as local:
            local.catch_up()

            def seen() -> TopicStatus:
                (view,) = view_of(local.engines, COPYING, 0.0).topics
                return view

            assert wait(destination, mirror, Condition.HEALTHY, 120_000).exit_code == ExitCode.OK
            assert (seen().lag, seen().state) == (0, "ACTIVE")

            get, described = asking(local.service), describing(destination, mirror)
            assert_all_say(
                get,
                described,
                lambda reported: reported["states"] == {"MIRRORING": 1} and reported["lag"] == {topic: 0},
            )
            wait_until(lambda: get("/readyz") == (200, "records flow\n"))
            freeze(source, 1)
            try:
                wait_until(lambda: seen().lag is None and seen().state == "SOURCE_UNAVAILABLE", 6 * KNOWN_SECONDS)
                assert seen().reason is Reason.SOURCE_UNREACHABLE
                (row,) = describe(destination, mirror)
                assert (row.lag, row.last_known_lag, row.reason) == (None, 0, Reason.SOURCE_UNREACHABLE)
                (listed,) = [one for one in list_mirrors(destination) if one.mirror == mirror]
                assert (listed.state, listed.max_lag, listed.reason) == (
                    TopicState.SOURCE_UNAVAILABLE,
                    None,
                    Reason.SOURCE_UNREACHABLE,
                )
                result = wait(destination, mirror, Condition.HEALTHY, 100)
                assert (result.exit_code, result.results[0].reason) == (ExitCode.TIMED_OUT, Reason.SOURCE_UNREACHABLE)
                facts = report_facts(destination, mirror)
                reported = "\n".join(summary(facts, period_of(facts)))
                assert "The source does not answer now" in reported
                assert "How far 1 partition is behind is not known now" in reported
                samples = assert_all_say(
                    get, described, lambda reported: reported["topics"] == {"SOURCE_UNAVAILABLE": 1}
                )
                assert value(samples, "kmirror_topic_lag_offsets", mirror=mirror, topic=topic) is None
                assert value(samples, "kmirror_partitions_lag_unknown", mirror=mirror) == 1
                assert value(samples, "kmirror_source_up", mirror=mirror) == 0
                status, cause = get("/readyz")
                assert (status, f"{topic}-0 is not healthy: " in cause) == (503, True), cause
                assert get("/healthz") == (200, "the driver is running\n")
            finally:
                source.signal(1, signal.SIGCONT)
            wait_until(lambda: (seen().lag, seen().state) == (0, "ACTIVE"), 90)
            assert wait(destination, mirror, Condition.HEALTHY, 120_000).exit_code == ExitCode.OK
            wait_until(lambda: get("/readyz")[0] == 200)
            hour = json.loads(get("/history.json")[1])
            check("history", hour)
            (points,) = [one["points"] for one in hour["mirrors"] if one["mirror"] == mirror]
            assert ("SOURCE_UNREACHABLE", None) in [(point["phase"], point["lag"]) for point in points]
            told_events = [(event["what"], event["result"]) for event in hour["events"]]
            assert hour["eventsTrouble"] is None
            assert told_events.index(("add", "OK")) < told_events.index(("source", "SOURCE_UNAVAILABLE"))
            produce(destination_cluster, topic, ["foreign"])
            samples = assert_all_say(get, described, lambda reported: reported["states"] == {"FAILED": 1})
            assert value(samples, "kmirror_failures_total", mirror=mirror) == 1
            assert value(samples, "kmirror_topic_partitions_failed", mirror=mirror, topic=topic) == 1
            assert (get("/readyz")[0], get("/healthz")[0]) == (503, 200)
        # what the engine noted of it outlives the engine
        points = [point for _, point in points_of(destination.state().history(mirror))]
        assert [p.phase for p in points if p.lag_unknown][:1] == ["SOURCE_UNREACHABLE"]
        facts = report_facts(destination, mirror)
        assert facts.status.health.reason is Reason.NO_ENGINE
        document = StrictHtml(drawn(page(facts)))
        assert document.count("rect", "bad") > 0
        # what makes the copy long enough is not the source's
        assert "How far 1 partition is behind is not known now" in document.text()


@pytest.mark.slow
def test_no_lane_is_replaced_because_the_destination_stores_no_report(
    source_cluster: SandboxCluster, mortal_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_s = 4.0
    monkeypatch.setattr(lanes, "LANE_SILENCE_SECONDS", silence_s)
    source, there, topic = source_cluster, mortal_cluster, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    with Destination.open(properties_of(there)) as destination:
        mirror = new_mirror(destination, source)
        assert add(destination, mirror, selector(topic)).exit_code == ExitCode.OK
        with LocalEngine(destination, mirror) as local:
            local.catch_up()

            def last_reports() -> list[float]:
                return list(local.engine.snapshot().lanes_reported_at.values())

            before = last_reports()
            freeze(there, 1)
            try:
                wait_until(lambda: now() - max(last_reports()) > 3 * silence_s)
            finally:
                there.signal(1, signal.SIGCONT)
            wait_until(lambda: min(last_reports()) > max(before) + 3 * silence_s)
            produce(source, topic, ["two"])
            local.catch_up()
            assert len(local.lanes) == len(before)
            assert not [note for note in local.notes if "is replaced" in note]
            assert local.engine.snapshot().lane_restarts == 0
