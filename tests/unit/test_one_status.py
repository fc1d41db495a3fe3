"""One snapshot, fed to everything that shows a mirror: each says the same of each topic's state, reason and lag.

Once, the log of `run` called a topic ACTIVE for which a promote waited, where `describe` called it PENDING_STOPPED; an
engine whose heartbeats were not accepted was DESTINATION_UNREACHABLE in its log, and ENGINE_SILENT on its page; the lag
of a paused topic counted on the page, and not in the chart below it; a source that did not answer in time had a reason
in the log, and none on the page; a lane that had just been started was NO_WORKERS for all but the log; and the page,
`top` and the report each added up lags, ages and times left by rules of their own.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from py_mini_racer import MiniRacer
from rich.console import Console

from kmirror.cli.terminal.observation import Observation
from kmirror.cli.terminal.progress_lines import run_table
from kmirror.cli.terminal.run_log import ChangeTracker
from kmirror.cli.terminal.top_view import TopView
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.driver import RunView
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.engine.status.counters import Counters
from kmirror.engine.status.history import Sample
from kmirror.errors import NOT_COPYING, KmirrorError, Reason, UnreachableError
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.listing import Overview
from kmirror.ops.show.wait import Condition, judge
from kmirror.state.engine_findings import Lacking
from kmirror.state.record_kinds import Record
from kmirror.state.records import PENDING_PROMOTE, DesiredState, PartitionRecord, PartitionState
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.engine_health import engine_health
from kmirror.status.mirror_status import MirrorStatus
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PARTITIONS
from kmirror.status.topic_status import TOPICS, shown_state, totals
from kmirror.web.look import script
from kmirror.web.report_facts import ClusterFacts, ReportFacts
from kmirror.web.report_page import page
from kmirror.web.served import SERVED_MIRRORS, ServedMirror
from kmirror.web.stored_mirror import OffsetLook, stored_mirror
from tests.support import live_engine
from tests.support.live_engine import AT, NOW_MS, live_status, silent, snapshot, topic_record, turning
from tests.support.page_script import inlined, text_of
from tests.support.scraped import asking, scraped, summary_of_rows, value
from tests.support.statuses import status_of
from tests.support.strict_html import StrictHtml

#: By topic: its state, its reason, and its lag; None where it is unknown, or the topic is stopped.
Said = Mapping[str, tuple[str, str | None, int | None]]

_LACKING = {"lacking": Lacking(2, Reason.NOT_AUTHORIZED, "refused")}


def scene(seen_ms: int | None = None, **more: Any) -> MirrorSnapshot:
    """Return a mirror with a topic in every state that does not concern its link as a whole.

    `seen_ms` is when its lanes last had an answer from the source; None for just now.
    """

    def stored(topic: str, state: PartitionState, reason: Reason | None = None, **known: Any) -> PartitionRecord:
        return PartitionRecord("m", topic, 0, state, NOW_MS - 50_000, reason, **known)

    records: list[Record] = [
        topic_record("waiting", pending_operation=PENDING_PROMOTE),
        WorkflowRecord("m", PROMOTE, "WAITING", "op@h1", NOW_MS - 60_000, NOW_MS - 100),
        topic_record("paused", desired=DesiredState.PAUSED),
        stored("paused", PartitionState.PAUSED, aligned=True, begun=True),
        topic_record("stopped", desired=DesiredState.STOPPED),
        stored("stopped", PartitionState.STOPPED, Reason.PROMOTED),
        stored("fresh", PartitionState.LOG_ALIGNMENT),
        stored("lacking", PartitionState.MIRRORING, aligned=True, begun=True),
    ]
    row = partial(live_engine.row, source_seen_ms=seen_ms)
    known = snapshot(
        row("active"),
        row("failed", copied=80, state=PartitionState.FAILED, reason=Reason.DESTINATION_WRITTEN, message="3 records"),
        row("waiting", copied=97),
        row("fresh", copied=0, state=PartitionState.LOG_ALIGNMENT, begun=False),
        row("lacking", copied=100),
        records=records,
        **{
            "paused_ends": (AT - 5, {TopicPartition("paused", 0): (50, 43)}),
            "lacking": _LACKING,
            "lacking_starts": {TopicPartition("lacking", 1): 5},
            **more,
        },
    )
    ends = {**known.source_ends, TopicPartition("lacking", 1): (AT - 3, 25)}
    return replace(known, engine=replace(known.engine, lacking=_LACKING), source_ends=more.get("source_ends", ends))


WELL: Said = {
    "active": ("ACTIVE", None, 10),
    "failed": ("FAILED", "DESTINATION_WRITTEN", 20),
    "fresh": ("PENDING_MIRROR", None, 100),
    "lacking": ("PENDING_MIRROR", "NOT_AUTHORIZED", 20),
    "paused": ("PAUSED", "PAUSED_BY_OPERATOR", 7),
    "stopped": ("STOPPED", "PROMOTED", None),
    "waiting": ("PENDING_STOPPED", None, 3),
}


def linked(state: str, reason: str, lag: Callable[[str], int | None] = lambda _: None) -> Said:
    """Return what is said while something is wrong with the link as a whole."""
    found = {}
    for topic, (before, why, _) in WELL.items():
        kept = before in ("FAILED", "PAUSED", "STOPPED")
        found[topic] = (
            before if kept or before == "PENDING_STOPPED" else state,
            why if kept else reason,
            lag(topic),
        )
    return found


DOWN = UnreachableError("the source: no answer", None, Reason.SOURCE_UNREACHABLE)
REFUSED = UnreachableError("the source: no", None, Reason.AUTHENTICATION_FAILED)


def unheard() -> MirrorSnapshot:
    """Return the scene of an engine whose heartbeats are not accepted."""
    known = scene()
    return replace(known, engine=replace(known.engine, last_seen_ms=NOW_MS - 30_000))


SCENES: Mapping[str, tuple[MirrorSnapshot, Said]] = {
    "well": (scene(), WELL),
    "source down": (
        scene(NOW_MS - 20_000, source_trouble=DOWN, source_ends={}),
        linked("SOURCE_UNAVAILABLE", "SOURCE_UNREACHABLE"),
    ),
    "source errs": (
        scene(NOW_MS - 20_000, source_trouble=KmirrorError("no answer in time"), source_ends={}),
        linked("SOURCE_UNAVAILABLE", "SOURCE_UNREACHABLE"),
    ),
    "source refuses": (
        scene(NOW_MS - 20_000, source_trouble=REFUSED, source_ends={}),
        linked("LINK_FAILED", "AUTHENTICATION_FAILED"),
    ),
    "no workers": (
        silent(scene()),
        {
            **linked("LINK_FAILED", "NO_WORKERS", lambda topic: WELL[topic][2]),
            "fresh": ("PENDING_MIRROR", "NO_WORKERS", 100),
            "lacking": ("PENDING_MIRROR", "NO_WORKERS", 20),
        },
    ),
    "a lane that has just been started": (silent(scene(), 5), WELL),
    "no heartbeats": (
        unheard(),
        {
            **linked("LINK_FAILED", "ENGINE_SILENT"),
            "fresh": ("PENDING_MIRROR", "ENGINE_SILENT", None),
            "lacking": ("PENDING_MIRROR", "ENGINE_SILENT", None),
        },
    ),
}


def commanded(known: MirrorSnapshot) -> MirrorStatus:
    """Return the status as commands derive it, when they read from the clusters what the engine knows of them."""
    state = State.of({**known.stored, known.engine.key: known.engine}.values())
    record = state.mirror("m")
    assert record is not None
    here, source = looked(known)
    return status_of(state, record, state.topics("m"), here, source, NOW_MS, engine_has_ended=False)


def looked(known: MirrorSnapshot) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """Return what both clusters answer a command."""
    is_unheard = NOW_MS - known.engine.last_seen_ms > 10_000
    ends = {p: one.destination_offset for p, one in known.rows.items() if one.destination_offset is not None}
    ends |= {p: here for p, (_, here) in known.paused_ends[1].items()}
    there = {p: end for p, (_, end) in known.source_ends.items()} | {p: e for p, (e, _) in known.paused_ends[1].items()}
    source = ClusterSnapshot(
        NOW_MS,
        last_stable_offset=there,
        high_watermark=there,
        log_start_offset=known.lacking_starts,
        partition_counts={topic: one.partitions for topic, one in known.lacking.items()},
    )
    if known.source_trouble is not None:
        source = ClusterSnapshot(NOW_MS, trouble=known.source_trouble)
    return ClusterSnapshot(NOW_MS, high_watermark={} if is_unheard else ends), source


def watched(known: MirrorSnapshot, *, with_look: bool = True) -> ServedMirror:
    """Return the status as `serve` derives it from what is stored, and from a look at both clusters."""
    state = State.of({**known.stored, known.engine.key: known.engine}.values())
    record = state.mirror("m")
    assert record is not None
    look = OffsetLook(*looked(known), {topic.topic: topic for topic in state.topics("m")}) if with_look else None
    health = engine_health(known.engine, "m", NOW_MS, has_ended=False)
    return stored_mirror("dr", state, record, look, health, NOW_MS, is_here=True)


def by_topic(rows: Sequence[Mapping[str, Any]]) -> Said:
    """Sum up partitions as people would."""
    found = {}
    for topic in sorted({one["topic"] for one in rows}):
        own = [one for one in rows if one["topic"] == topic]
        (state,) = {one["topicState"] for one in own}
        reasons = [one["reason"] for one in own if one["state"] == "FAILED"]
        reasons += [one["reason"] for one in own if one["reason"] in NOT_COPYING]
        reasons += [one["reason"] for one in own if one["reason"] is not None]
        lags = [one["lag"] for one in own]
        found[topic] = state, (reasons or [None])[0], None if None in lags else sum(lags)
    return found


def of_topics(documents: Sequence[Mapping[str, Any]]) -> Said:
    return {one["topic"]: (one["state"], one["reason"], None if one["lagUnknown"] else one["lag"]) for one in documents}


@pytest.fixture(params=SCENES)
def known(request: pytest.FixtureRequest) -> MirrorSnapshot:
    return SCENES[request.param][0]


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Said:
    return SCENES[request.node.callspec.params["known"]][1]


def test_describe_and_wait(known: MirrorSnapshot, expected: Said) -> None:
    rows = commanded(known).partitions
    assert by_topic([PARTITIONS.document(one) for one in rows]) == expected
    judged = {one.topic: one.result for one in judge(Condition.HEALTHY, rows, {})}
    # a lane that has not reported yet is no trouble, and nothing is known to be copied
    copied = {topic for topic, (state, reason, _) in expected.items() if state == "ACTIVE" and reason is None}
    well = copied if not known.silent_lanes else set()
    assert {topic for topic, result in judged.items() if result is Outcome.DONE} == {*well, "paused", "stopped"}


def test_list_and_top(known: MirrorSnapshot, expected: Said) -> None:
    status = commanded(known)
    states = [state for state, _, _ in expected.values()]
    assert (status.row.state, status.row.stopped_topics) == ("FAILED", states.count("STOPPED"))
    seen = Observation(Overview((status.row,), status.topics, totals(status.partitions)), 100.0)
    view = TopView("b:9092")
    assert [view.press(key) for key in "ss"] == [True, True]
    lines = ["".join(text for text, _ in line) for line in view.lines(seen, 100.0, 200, 40)]
    shown = {
        line.split()[0]: line.split(maxsplit=5) for line in lines if line.split()[:1] and line.split()[0] in expected
    }
    for topic, (state, reason, lag) in expected.items():
        assert shown[topic][5].strip() == shown_state(state, reason and Reason(reason)), topic  # type: ignore[arg-type]
        total = shown[topic][2]
        assert (None if total == "-" or total.startswith("≥") else int(total)) == lag, topic


def test_the_page_its_json_metrics_and_readiness(known: MirrorSnapshot, expected: Said) -> None:
    with turning(known) as service:
        get = asking(service)
        status = json.loads(get("/status.json")[1])
        samples = scraped(get)
        ready = get("/readyz")
    assert of_topics(status["topics"]) == expected
    assert by_topic(status["partitions"]) == expected
    engine = MiniRacer()
    engine.eval(script())
    for document in status["topics"]:
        state, reason, lag = expected[document["topic"]]
        cells = StrictHtml(f"<table>{engine.eval(f'topicRow({json.dumps(document)}, false)')}</table>").text()
        assert cells.startswith(document["topic"] + state + (f" ({reason})" if reason else "")), cells
        if lag is not None:
            assert f"{document['partitions']}{lag}" in cells
    counts = Counter(state for state, _, _ in expected.values())
    assert {state: value(samples, "kmirror_topics", mirror="m", state=state) for state in counts} == counts
    lags = {topic: value(samples, "kmirror_topic_lag_offsets", mirror="m", topic=topic) for topic in expected}
    assert lags == {topic: lag for topic, (_, _, lag) in expected.items()}
    reasons = summary_of_rows(status["partitions"])["reasons"]
    assert {r: value(samples, "kmirror_partitions_by_reason", mirror="m", reason=r) for r in reasons} == reasons
    assert (ready[0], value(samples, "kmirror_healthy", mirror="m")) == (503, 0)
    assert status["missing"] + "\n" == ready[1]


def test_what_serve_shows(known: MirrorSnapshot, expected: Said) -> None:
    found = watched(known)
    assert by_topic([PARTITIONS.document(one) for one in found.partitions]) == expected
    assert of_topics([TOPICS.document(one) for one in found.topics]) == expected
    assert found.missing is not None
    row = SERVED_MIRRORS.document(found)
    assert row["topicStates"] == Counter(state for state, _, _ in expected.values())
    assert row["lag"] == totals(found.partitions).lag


def test_what_serve_shows_of_topics_that_a_live_engine_reports_needs_no_look_at_the_clusters() -> None:
    found = by_topic([PARTITIONS.document(one) for one in watched(scene(), with_look=False).partitions])
    reported = ("active", "failed", "fresh", "waiting")
    assert {topic: found[topic] for topic in reported} == {topic: WELL[topic] for topic in reported}
    # who copies no topic reports none: its lag is unknown until someone looks
    assert found["paused"] == ("PAUSED", "PAUSED_BY_OPERATOR", None)


def test_the_log_the_table_and_the_history_of_run(known: MirrorSnapshot, expected: Said) -> None:
    topics = live_status(known).current(AT, NOW_MS)
    assert {one.topic: (one.state, one.reason, None if one.lag_unknown else one.lag) for one in topics} == expected
    view = RunView(NOW_MS, 0.0, "copying", ("m",), topics, 0.0, ())
    logged = {
        topic: (entry.fields["state"], entry.fields["reason"])
        for entry in ChangeTracker().entries(view)
        if "topicCount" in entry.fields
        for topic in entry.fields["topics"]  # type: ignore[attr-defined]
    }
    asked_for = ("PAUSED", "STOPPED")
    assert logged == {
        topic: (state, None if state in asked_for else reason) for topic, (state, reason, _) in expected.items()
    }
    console = Console(file=io.StringIO(), width=300, color_system=None, highlight=False)
    console.print(run_table(view, 20))
    assert isinstance(console.file, io.StringIO)
    lines = {line.split()[0]: line for line in console.file.getvalue().splitlines()}
    for topic, (state, reason, lag) in expected.items():
        if state not in asked_for:
            assert f"  {state}" + (f" {reason}: " if reason else "") in lines[topic]
            assert lag is None or f"  {lag} " in lines[topic]
    sample = Sample.of(topics, Counters(), known.source_trouble)
    sums = totals(one for topic in topics for one in topic.partitions)
    assert (sample.lag, sample.lag_unknown) == (sums.lag, sums.unknown_lags)
    assert sample.failed == [state for state, _, _ in expected.values()].count("FAILED")


def test_the_report(known: MirrorSnapshot, expected: Said) -> None:
    cluster, status = partial(ClusterFacts, "a:1", "A", None), commanded(known)
    stored = State.of(known.stored.values())
    facts = ReportFacts(NOW_MS, "eve", cluster(), cluster(), status, stored.topics("m"), (), (), (), {})
    document = page(facts)
    assert of_topics(json.loads(inlined(document))["status"]["topics"]) == expected
    # the topics' own table is the one with seven columns
    rows = {line.split("|")[0]: line.split("|") for line in text_of(document).splitlines() if line.count("|") == 7}
    for topic, (state, reason, lag) in expected.items():
        assert rows[topic][1].startswith(state + (f" ({reason})" if reason else ""))
        assert lag is None or rows[topic][3] == str(lag)
