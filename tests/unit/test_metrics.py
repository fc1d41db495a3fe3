"""What /metrics says of what an engine knows: each metric as it is declared, and nothing of what is not known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kmirror.engine.driver.engines import NotCopied
from kmirror.errors import Reason, RefusedError, UnreachableError
from kmirror.state.group_records import GroupReason, GroupRecord, GroupsRecord
from kmirror.state.records import DesiredState, Latencies, PartitionState, ProgressRow
from kmirror.state.snapshot import State
from kmirror.status.engine_health import HeardEngines
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.partition_row import PARTITIONS
from kmirror.web.exposition import exposition
from kmirror.web.live_mirror import live_mirror
from kmirror.web.metrics import METRICS, Metric
from kmirror.web.mirror_cache import MirrorCache
from kmirror.web.run_metrics import RUN_METRICS
from kmirror.web.served import ServedStatus
from kmirror.work import WorkView
from tests.support.live_engine import AT, NOW_MS, mirror_record, row, silent, snapshot, topic_record
from tests.support.metrics_page import PAGE, page
from tests.support.scraped import OPENMETRICS, Samples, read, summary_of_metrics, summary_of_rows, value

EVERY: tuple[Metric[Any], ...] = (*METRICS, *RUN_METRICS)
PER_PARTITION = mirror_record(metrics_per_partition="true")
DOWN = UnreachableError("the source: no answer", None, Reason.SOURCE_UNREACHABLE)


def served(*found: object, accept: str = "", **more: object) -> Samples:
    """Return the samples of a run that copies these mirrors."""
    mirrors = tuple(live_mirror(one) for one in found)  # type: ignore[arg-type]
    text, content_type = exposition(ServedStatus("copying", NOW_MS, None, mirrors, **more), accept)  # type: ignore[arg-type]
    assert ("openmetrics" in content_type) == bool(accept)
    return read(text.decode(), accept)


def test_the_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python -m tests.support.metrics_page"


def test_names_follow_prometheus_conventions() -> None:
    names = [one.name for one in EVERY]
    assert max(Counter(names).values()) == 1
    for metric in EVERY:
        assert metric.name.startswith("kmirror_")
        assert metric.unit != "seconds" or "_seconds" in metric.name
        assert metric.unit != "bytes" or "_bytes" in metric.name


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_declared_metric_is_served_where_all_is_known(accept: str) -> None:
    given = {"metrics_per_partition": "true", "throttle_bytes_per_second": "70000", "objective_rpo": ".*=1s"}
    mirror = mirror_record(**given)
    known = snapshot(row(), mirror=mirror, records=[GroupsRecord("m", NOW_MS, 3)], jobs=("rights",))
    found = served(known, accept=accept)
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in found}
    clusters = {one.name for one in EVERY if one.name.startswith("kmirror_cluster_")}
    assert names == {one.name for one in EVERY} - clusters


def test_lag_is_summed_up_by_topic_and_the_time_lag_is_the_largest() -> None:
    rows = [row(), row(partition=1, source=50, copied=48), row("u", copied=100)]
    found = served(snapshot(*rows))
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="t") == 12
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="u") == 0
    assert (value(found, "kmirror_topic_lag_seconds", mirror="m", topic="t") or 0) > 0
    assert value(found, "kmirror_topic_lag_seconds", mirror="m", topic="u") == 0
    assert value(found, "kmirror_partitions_lag_unknown", mirror="m") == 0
    assert value(found, "kmirror_partition_lag_offsets", mirror="m", topic="t", partition="0") is None


def test_objectives_have_samples_where_topics_have_one() -> None:
    rows = [row(), row("u", copied=100), row("v", source_seen_ms=NOW_MS - 11_000), row("w")]
    known = snapshot(*rows, mirror=mirror_record(objective_rpo="w=10d, [tuv]=1ms"))
    old = {partition: (AT - 11, 100) for partition in known.source_ends if partition.topic == "v"}
    found = served(replace(known, source_ends={**known.source_ends, **old}))
    met = {topic: value(found, "kmirror_topic_objective_met", mirror="m", topic=topic) for topic in "tuvw"}
    assert met == {"t": 0, "u": 1, "v": None, "w": 1}
    assert value(found, "kmirror_topic_objective_seconds", mirror="m", topic="w") == 864_000
    states = {state: value(found, "kmirror_objectives", mirror="m", state=state) for state in ObjectiveState}
    assert states == {"WITHIN": 2, "BREACHED": 1, "UNKNOWN": 1}
    without = served(snapshot(*rows))
    assert value(without, "kmirror_topic_objective_seconds", mirror="m", topic="t") is None
    assert value(without, "kmirror_objectives", mirror="m", state="WITHIN") == 0


def test_a_lag_that_is_not_known_is_absent_with_that_of_its_topic_and_counted() -> None:
    rows = [row(source_seen_ms=NOW_MS - 11_000), row(partition=1), row("u")]
    known = snapshot(*rows, mirror=PER_PARTITION)
    partition = next(iter(known.source_ends))
    # eleven seconds ago the source said where one of the partitions ends
    found = served(replace(known, source_ends={**known.source_ends, partition: (AT - 11, 100)}))
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="t") is None
    assert value(found, "kmirror_topic_lag_seconds", mirror="m", topic="t") is None
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="u") == 10
    assert value(found, "kmirror_partitions_lag_unknown", mirror="m") == 1
    gone, there = {"topic": "t", "partition": "0"}, {"topic": "t", "partition": "1"}
    assert value(found, "kmirror_partition_lag_offsets", mirror="m", **gone) is None
    assert value(found, "kmirror_partition_source_offset", mirror="m", **gone) is None
    assert value(found, "kmirror_partition_destination_offset", mirror="m", **gone) == 90
    assert value(found, "kmirror_partition_lag_offsets", mirror="m", **there) == 10
    assert value(found, "kmirror_partition_source_offset", mirror="m", **there) == 100


@pytest.mark.parametrize("failed", [row(state=PartitionState.FAILED, reason=Reason.DESTINATION_WRITTEN)])
def test_a_failed_partition_is_counted_by_state_reason_and_topic(failed: ProgressRow) -> None:
    found = served(snapshot(failed, row(partition=1)))
    assert value(found, "kmirror_partitions", mirror="m", state="FAILED") == 1
    assert value(found, "kmirror_partitions", mirror="m", state="MIRRORING") == 1
    assert value(found, "kmirror_partitions_by_reason", mirror="m", reason="DESTINATION_WRITTEN") == 1
    assert value(found, "kmirror_partitions_by_reason", mirror="m", reason="NO_WORKERS") == 0
    assert value(found, "kmirror_topic_partitions_failed", mirror="m", topic="t") == 1
    assert value(found, "kmirror_topics", mirror="m", state="FAILED") == 1
    assert value(found, "kmirror_healthy", mirror="m") == 0


def test_without_workers_nothing_counts_as_mirrored_and_the_lag_is_what_is_missing_at_most() -> None:
    found = served(silent(snapshot(row(), row(partition=1))))
    assert value(found, "kmirror_partitions", mirror="m", state="MIRRORING") == 0
    assert value(found, "kmirror_partitions", mirror="m", state="NO_WORKERS") == 2
    assert value(found, "kmirror_topics", mirror="m", state="LINK_FAILED") == 1
    assert value(found, "kmirror_lanes_silent", mirror="m") == 1
    assert value(found, "kmirror_lane_report_age_seconds", mirror="m", lane="0") == 60
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="t") == 20
    assert value(found, "kmirror_healthy", mirror="m") == 0


def test_a_page_shows_how_far_the_archive_of_a_rebuild_is() -> None:
    view = WorkView("archiving t", 0.0, 1.0, "offset", 3000, 9000)
    (found,) = live_mirror(snapshot(row(), rebuilding={"t": view})).partitions
    assert (found.error_message or "").endswith("archiving t: 3,000 of 9,000 offsets")


def test_an_engine_whose_heartbeats_are_not_accepted_says_so() -> None:
    known = snapshot(row())
    old = replace(known.engine, last_seen_ms=NOW_MS - 30_000)
    live = live_mirror(replace(known, engine=old))
    assert live.missing == (
        "t-0 is not healthy: the destination has not accepted a heartbeat of this engine since "
        "2023-11-14T22:12:50Z; check the destination"
    )
    found = served(replace(known, engine=old))
    assert value(found, "kmirror_engine_heartbeat_age_seconds", mirror="m") == 30
    assert value(found, "kmirror_partitions", mirror="m", state="ENGINE_SILENT") == 1


def test_an_engine_whose_clock_was_set_back_is_not_silent() -> None:
    known = snapshot(row())
    later = replace(known, engine=replace(known.engine, last_seen_ms=NOW_MS + 3_600_000))
    assert live_mirror(later).missing is None
    assert value(served(later), "kmirror_engine_heartbeat_age_seconds", mirror="m") == 0
    lost = live_mirror(replace(later, destination_trouble="no response from b:9092"))
    assert str(lost.missing).endswith("no response from b:9092")


@pytest.mark.parametrize(
    ("ahead_ms", "ages"), [(0, [1, 1]), (-40_000, [41, 2]), (3_600_000, [None, 2])], ids=["same", "behind", "ahead"]
)
def test_who_watches_compares_no_clock_with_that_of_an_engine(ahead_ms: int, ages: list[float | None]) -> None:
    known, heard, found = snapshot(row()), HeardEngines(), []
    cache = MirrorCache("dr", heard.heard_ms)
    for now_ms in (NOW_MS, NOW_MS + 2_000):
        engine = replace(known.engine, last_seen_ms=now_ms - 1_000 + ahead_ms)
        state = State.of({**known.stored, engine.key: engine}.values())
        heard.take(state, now_ms)
        mirrors = cache.mirrors(state, lambda _: None, now_ms, lambda _: True)
        text, _ = exposition(ServedStatus("watching", now_ms, None, mirrors), "")
        found.append(value(read(text.decode(), ""), "kmirror_engine_heartbeat_age_seconds", mirror="m", cluster="dr"))
    assert found == ages


def test_a_source_that_was_never_asked_is_neither_up_nor_down() -> None:
    assert value(served(snapshot(row(), source_seen_at=None)), "kmirror_source_up", mirror="m") is None
    found = served(snapshot(row()))
    assert (
        value(found, "kmirror_source_up", mirror="m"),
        value(found, "kmirror_source_answer_age_seconds", mirror="m"),
    ) == (1, 4)
    found = served(snapshot(row(), source_trouble=DOWN))
    assert value(found, "kmirror_source_up", mirror="m") == 0
    assert value(found, "kmirror_topics", mirror="m", state="SOURCE_UNAVAILABLE") == 1


def test_paused_and_stopped_partitions_have_no_lag_and_lack_none() -> None:
    paused = topic_record("p", desired=DesiredState.PAUSED)
    found = served(snapshot(row(), records=[paused]))
    assert value(found, "kmirror_partitions_lag_unknown", mirror="m") == 0
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic="p") is None
    assert value(found, "kmirror_topics", mirror="m", state="PAUSED") == 1


def test_ages_of_jobs_count_from_the_engine_s_beginning_until_they_succeed() -> None:
    known = snapshot(row(), jobs=("group offsets", "topic settings"), jobs_done_at={"topic settings": AT - 7})
    found = served(known)
    assert value(found, "kmirror_job_success_age_seconds", mirror="m", sync="groups") == 60
    assert value(found, "kmirror_job_success_age_seconds", mirror="m", sync="settings") == 7
    assert value(found, "kmirror_job_success_age_seconds", mirror="m", sync="rights") is None


def test_groups_that_are_left_alone_are_counted_by_reason() -> None:
    group = GroupRecord("m", "g", "g", "consumer", NOW_MS, skipped=GroupReason.HAS_MEMBERS)
    found = served(snapshot(row(), records=[group, GroupRecord("m", "h", "h", "consumer", NOW_MS)]))
    assert value(found, "kmirror_groups_skipped", mirror="m", reason="HAS_MEMBERS") == 1
    assert value(found, "kmirror_groups_skipped", mirror="m", reason="COMMITTED_HERE") == 0
    assert value(found, "kmirror_groups", mirror="m") is None


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_latencies_are_a_histogram(accept: str) -> None:
    known = snapshot(row())
    known.counters.fetch_latencies = Latencies((1, 2, *(0,) * 11, 4), 12.5)
    found = served(known, accept=accept)
    name = "kmirror_fetch_duration_seconds"
    assert value(found, f"{name}_bucket", mirror="m", le="0.001") == 1
    assert value(found, f"{name}_bucket", mirror="m", le="0.0025") == 3
    assert value(found, f"{name}_bucket", mirror="m", le="10.0") == 3
    assert value(found, f"{name}_bucket", mirror="m", le="+Inf") == 7
    assert (value(found, f"{name}_count", mirror="m"), value(found, f"{name}_sum", mirror="m")) == (7, 12.5)


def test_losses_and_restarts_are_counted() -> None:
    events = Counter({("partition", "FAILED"): 2, ("partition", "LOSS_ACCEPTED"): 1})
    found = served(snapshot(row(), events=events, lost_records=40, lane_restarts=3, rebuilds=1))
    reported = {
        name: value(found, f"kmirror_{name}_total", mirror="m") for name in ("failures", "losses", "lost_records")
    }
    assert reported == {"failures": 2, "losses": 1, "lost_records": 40}
    assert value(found, "kmirror_lane_restarts_total", mirror="m") == 3
    assert value(found, "kmirror_rebuilds_total", mirror="m") == 1


def test_each_mirror_of_a_run_has_its_series_and_one_without_an_engine_is_not_healthy() -> None:
    other = snapshot(row("u"), mirror=mirror_record("n"))
    found = served(snapshot(row()), other, not_copied={"o": NotCopied("its lease is held elsewhere")})
    healthy = {mirror: value(found, "kmirror_healthy", mirror=mirror) for mirror in ("m", "n", "o")}
    assert healthy == {"m": 1, "n": 1, "o": 0}
    assert value(found, "kmirror_topic_lag_offsets", mirror="n", topic="u") == 10
    assert value(found, "kmirror_topics", mirror="o", state="ACTIVE") is None


def test_before_it_copies_a_run_reports_its_phase_and_no_mirrors() -> None:
    text, _ = exposition(ServedStatus("waiting", NOW_MS, "waiting"), "")
    found = read(text.decode())
    assert {name for name, _ in found} == {"kmirror_build_info", "kmirror_run_phase"}
    assert value(found, "kmirror_run_phase", phase="waiting") == 1
    assert value(found, "kmirror_run_phase", phase="copying") == 0


def test_a_mirror_that_another_engine_has_taken_or_that_is_gone_is_not_healthy() -> None:
    fenced = RefusedError("this engine is no longer in charge of mirror 'm'", None, Reason.FENCED)
    assert live_mirror(snapshot(row(), lost=fenced)).missing == str(fenced)
    known = snapshot(row())
    gone = live_mirror(replace(known, stored={}))
    assert (gone.status, gone.missing) == (None, "there is no mirror m any more")
    assert live_mirror(snapshot()).missing == "mirror m has no topics yet"
    assert served(replace(known, stored={}))["kmirror_healthy", frozenset({("mirror", "m")})] == 0


def test_names_with_any_character_come_back_as_they_are() -> None:
    found = served(snapshot(row('a"b\\c\nd')))
    assert value(found, "kmirror_topic_lag_offsets", mirror="m", topic='a"b\\c\nd') == 10


@pytest.mark.parametrize(
    "known", [snapshot(row(), row("u", copied=100)), silent(snapshot(row()))], ids=["copied", "silent"]
)
def test_metrics_and_rows_say_the_same(known: object) -> None:
    rows = [PARTITIONS.document(one) for one in live_mirror(known).partitions]  # type: ignore[arg-type]
    assert summary_of_metrics(served(known), "m") == summary_of_rows(rows)
