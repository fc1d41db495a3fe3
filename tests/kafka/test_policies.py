"""A destination whose policies allow batches up to 8 MB and no endless retention: mirrored, and what is weaker is said.

No broker has such a policy of its own: the tests give one to it (tests/apps/java/HousePolicy).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topics import policies, topic_requests
from kmirror.cluster.topics.policies import settled_to_create
from kmirror.cluster.topics.trim import trim_compacted
from kmirror.engine.clock import now_ms
from kmirror.engine.driver.side_jobs import JobView
from kmirror.errors import Reason, RefusedError
from kmirror.ops.add import archive_admin
from kmirror.ops.add.add import add
from kmirror.ops.base.context import change, require_mirror
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.check import check
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.ops.probe.guarantees import Verdict
from kmirror.ops.show.describe import describe
from kmirror.ops.show.event_sentences import sentence
from kmirror.ops.show.events import events
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror.status.partition_row import PartitionRow
from kmirror.sync.setting_changes import MIRROR_VALUES
from kmirror.words import at_time
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import QUICK_JAVA_OPTIONS, MakeCluster, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.log_batches import VisibleRecord
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector, settings_of
from tests.support.policies import LARGEST_BATCH, LONGEST_RETENTION_MS, POLICY, policy_option
from tests.support.producers import whole_batches
from tests.support.round_trip import Trip, archives_of, make_old_topic
from tests.support.side_jobs import run_once
from tests.support.topics import alter_topic
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until

BATCH, TIME = "max.message.bytes", "retention.ms"
CLOSEST = {BATCH: str(LARGEST_BATCH), TIME: str(LONGEST_RETENTION_MS)}


@pytest.fixture(scope="module")
def guarded(make_module_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory) -> SandboxCluster:
    """Return a destination with the policy, which looks for old records all the time."""
    option = policy_option(tmp_path_factory.mktemp("policy"))
    often = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
    return make_module_cluster("guarded", properties={**POLICY, **often}, java_options=(*QUICK_JAVA_OPTIONS, option))


@pytest.fixture
def trip(source_cluster: SandboxCluster, guarded: SandboxCluster) -> Iterator[Trip]:
    with Trip(source_cluster, guarded) as made:
        yield made


def record_of(trip: Trip, topic: str) -> TopicRecord:
    found = trip.at_b.state().topic(trip.mirror, topic)
    assert found is not None
    return found


def closest(cluster: SandboxCluster, topic: str) -> dict[str, str]:
    found = settings_of(cluster, topic)
    return {key: found[key] for key in CLOSEST}


def synced(trip: Trip, *rejected: str) -> list[str]:
    """Sync settings once, as an engine does; return what it says."""
    state = trip.at_b.state()
    mirror = require_mirror(state, trip.mirror)
    partitions = {
        TopicPartition(topic, 0): PartitionRecord(
            trip.mirror, topic, 0, PartitionState.FAILED, now_ms(), Reason.RECORD_REJECTED
        )
        for topic in rejected
    }
    view = JobView(mirror, stored_settings(mirror.settings), tuple(state.topics(trip.mirror)), partitions, {})
    with closing(SettingsSyncJob(trip.mirror, trip.at_b.properties)) as job:
        return [event.note or "" for event in job.run(view)]


@pytest.mark.slow
def test_topics_get_the_closest_settings_and_what_is_weaker_is_said_before(trip: Trip) -> None:
    topic, other = unique_topic(), unique_topic()
    make_old_topic(trip.a, topic)
    make_topic(trip.a, other, cleanup_policy="compact", retention_ms="1000")
    before = [line for line in check(trip.at_b.properties, mirror=trip.mirror).lines if line.what == "new topics"]
    assert all(line.ok and line.hint for line in before)
    said = " ".join(line.message for line in before)
    assert f"{BATCH}=2147483647, and {LARGEST_BATCH} is the closest it accepts" in said
    assert f"{TIME}=-1, and {LONGEST_RETENTION_MS} is the closest it accepts" in said
    assert at_time(now_ms() - LONGEST_RETENTION_MS)[:10] in said
    probed = [line for line in check(trip.at_b.properties, probe=True).lines if line.guarantee is Verdict.WEAKER]
    assert [line.what for line in probed] == ["topic settings", "topic settings", "batch size", "ACLs"]
    assert f"batches of {LARGEST_BATCH:,} bytes are accepted" in probed[2].message
    done = add(trip.at_b, trip.mirror, selector(topic, other))
    assert done.exit_code == 0
    for one in (topic, other):
        assert closest(trip.b, one) == CLOSEST
        assert record_of(trip, one).settled == CLOSEST
    deleting, compacting = ([note for note in done.warnings if one in note and TIME in note] for one in (topic, other))
    assert "are deleted here even if the source keeps them" in deleting[0]
    assert not any("deleted here" in note for note in compacting)
    assert synced(trip) == []


def test_few_requests_find_the_closest_settings(trip: Trip, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def counted_one(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return topic_requests.create_topic(*arguments, **options)

    monkeypatch.setattr(policies, "create_topic", counted_one)
    wanted = {**MIRROR_VALUES, "retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    del wanted["message.timestamp.difference.max.ms"]  # which brokers of this version do not know
    assert settled_to_create(trip.at_b.client, unique_topic(), 1, 1, wanted) == CLOSEST
    assert len(asked) <= 20, "each may cost some of a quota of changes"


@pytest.mark.slow
def test_old_records_that_the_destination_deletes_are_neither_loss_nor_equal_and_a_stop_is_not_held_up(
    trip: Trip,
) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, [f"value-{n}" for n in range(5)])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        here = TopicPartition(topic, 0)
        wait_until(lambda: trip.at_b.client.list_offsets({here: -2})[here].offset == 5)
        produce(trip.a, topic, ["value-5"])
        engine.catch_up()
        wait_until(lambda: trip.at_b.client.list_offsets({here: -2})[here].offset == 6)
    long_ago = f"those before {at_time(now_ms() - LONGEST_RETENTION_MS)[:10]}"
    found = verify(trip.at_b, VerifyRequest(trip.mirror))
    (row,) = found.rows
    assert (row.result, row.message, row.offsets) == (Outcome.DONE, "nothing to compare", 0)
    assert row.notes == ("offsets 0 to 5 were not compared: the destination's log starts at 6",)
    assert long_ago in found.warnings[0]
    planned = promote(trip.at_b, PromoteRequest(trip.mirror, timeout_ms=5000), dry_run=True).result
    assert any(long_ago in warning for warning in planned.warnings), planned.warnings
    done = failover(trip.at_b, trip.mirror).result
    assert (done.exit_code, done.totals and done.totals.known_lost_records) == (0, 0)
    told = [warning for warning in done.warnings if not warning.startswith("group offsets")]
    assert long_ago in told[0]
    assert f"the destination refuses {TIME}=-1" in told[1]
    assert settings_of(trip.b, topic)[TIME] == str(LONGEST_RETENTION_MS)
    back = trip.back(dry_run=True).result
    assert back.exit_code == 0
    assert "offsets 0 to 5 exist only here" in back.warnings[0]


def test_a_stop_takes_what_is_accepted_and_its_dry_run_says_so(trip: Trip) -> None:
    """Once, such a timestamp held up every failover, and a retention that was too short became the longest."""
    topic = unique_topic()
    make_topic(trip.a, topic, message_timestamp_type="LogAppendTime", retention_bytes="1000")
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    refused = f"{topic}: the destination refuses "
    told = {
        f"{refused}message.timestamp.type=LogAppendTime, as its source has it: its present value stays",
        f"{refused}retention.bytes=1000, as its source has it: it is 1073741824",
    }
    for dry_run in (True, False):
        done = failover(trip.at_b, trip.mirror, dry_run=dry_run).result
        assert done.exit_code == 0
        assert {warning for warning in done.warnings if warning.startswith(refused)} == told
    found = settings_of(trip.b, topic)
    assert (found["retention.bytes"], found["message.timestamp.type"]) == ("1073741824", "CreateTime")


def test_a_value_that_is_refused_does_not_take_away_the_one_before_it(trip: Trip) -> None:
    topic, lag, hour_ms = unique_topic(), "min.compaction.lag.ms", 3_600_000
    make_topic(trip.a, topic, cleanup_policy="compact", min_compaction_lag_ms=str(24 * hour_ms))
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    for hours, here in ((48, 24), (24, 24), (72, 24), (12, 12)):
        alter_topic(trip.a, topic, min_compaction_lag_ms=str(hours * hour_ms))
        synced(trip)
        assert settings_of(trip.b, topic)[lag] == str(here * hour_ms)
        assert synced(trip) == []


def test_a_topic_that_was_created_under_the_policy_is_adopted(trip: Trip) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    make_topic(trip.b, topic, retention_ms="86400000", max_message_bytes="2000000")
    assert add(trip.at_b, trip.mirror, selector(topic), adopt=True).exit_code == 0
    assert closest(trip.b, topic) == CLOSEST


def test_settings_given_to_add_win(trip: Trip) -> None:
    topic, refused = unique_topic(), unique_topic()
    make_old_topic(trip.a, topic)
    make_old_topic(trip.a, refused)
    done = add(trip.at_b, trip.mirror, selector(topic), overrides={TIME: "86400000"})
    assert done.exit_code == 0
    assert closest(trip.b, topic) == {**CLOSEST, TIME: "86400000"}
    assert synced(trip) == []
    beyond = add(trip.at_b, trip.mirror, selector(refused), overrides={TIME: "86400000000"})
    assert [row.result for row in beyond.results] == [Outcome.REFUSED]
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    assert settings_of(trip.b, topic)[TIME] == "86400000"


def test_the_limit_is_raised_as_far_as_it_may_once_a_batch_was_too_large(trip: Trip) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    before = record_of(trip, topic)
    lower = {BATCH: "2000000"}
    less = replace(before, settled={**CLOSEST, **lower}, settings={**(before.settings or {}), **lower})
    change(trip.at_b, trip.mirror, lambda state: Changes((less,)))
    alter_topic(trip.b, topic, max_message_bytes="2000000")
    assert synced(trip) == []
    assert f"{BATCH}={LARGEST_BATCH}" in synced(trip, topic)[0]
    assert closest(trip.b, topic) == CLOSEST
    assert record_of(trip, topic).settled == CLOSEST
    assert synced(trip, topic) == []


def test_a_batch_above_the_limit_fails_its_partition_with_its_size(trip: Trip) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic, max_message_bytes="20000000")
    producer = whole_batches(topic, {**properties_of(trip.a), "message.max.bytes": 20_000_000})
    producer.produce(topic, bytes(LARGEST_BATCH), partition=0)
    assert producer.flush(30) == 0
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with LocalEngine(trip.at_b, trip.mirror):
        wait_until(lambda: failed(trip) is not None)
        row = failed(trip)
    assert row is not None
    assert (row.reason, row.destination_offset) == (Reason.RECORD_REJECTED, 0)
    assert re.search(r"MESSAGE_TOO_LARGE \(10\).*; the batch has 8,000,\d{3} bytes", row.error_message or "")


def failed(trip: Trip) -> PartitionRow | None:
    rows = [row for row in describe(trip.at_b, trip.mirror) if row.state is PartitionState.FAILED]
    return rows[0] if rows else None


def test_discovered_topics_get_the_closest_settings_too(trip: Trip) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    mirror = new_mirror(trip.at_b, trip.a, topics_include=topic)
    with closing(DiscoveryJob(mirror, trip.at_b.properties)) as job:
        said = [event.note or "" for event in run_once(job, trip.at_b, mirror)]
    assert closest(trip.b, topic) == CLOSEST
    assert any(f"the destination refuses {TIME}=-1" in note for note in said)


def test_a_compacted_topic_that_cannot_be_trimmed_says_why_and_keeps_its_settings(trip: Trip) -> None:
    topic = unique_topic()
    make_topic(trip.b, topic, cleanup_policy="compact")
    produce(trip.b, topic, ["one", "two"])
    with pytest.raises(RefusedError, match="forbids the retention that protects its records meanwhile"):
        trim_compacted(trip.at_b.client, {TopicPartition(topic, 0): 1})
    assert settings_of(trip.b, topic)["cleanup.policy"] == "compact"


@pytest.mark.slow
def test_a_topic_is_rebuilt_and_archived_with_the_closest_settings(trip: Trip) -> None:
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    recent(trip.a, topic, 3)
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        delete_topic(trip.a, topic)
        make_old_topic(trip.a, topic)
        recent(trip.a, topic, 5)
        wait_until(lambda: record_of(trip, topic).rebuilt_at_ms is not None)
        engine.catch_up()
    archive = record_of(trip, topic).archive
    assert archive is not None
    assert closest(trip.b, topic) == closest(trip.b, archive) == record_of(trip, topic).settled == CLOSEST


@pytest.mark.slow
def test_records_older_than_any_retention_stay_in_their_archive(trip: Trip) -> None:
    """Only a compacted topic still has them: the archive must not delete them as soon as the topic is gone."""
    topic = unique_topic()
    make_old_topic(trip.a, topic, cleanup_policy="compact")
    produce(trip.a, topic, [f"value-{n}" for n in range(5)])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        held = shown(trip.b, topic)
        delete_topic(trip.a, topic)
        make_old_topic(trip.a, topic, cleanup_policy="compact")
        wait_until(lambda: record_of(trip, topic).rebuilt_at_ms is not None)
        rebuilt_ms = now_ms()
    archive = record_of(trip, topic).archive
    assert archive is not None
    assert_kept(trip.b, archive, held, rebuilt_ms)
    (archived,) = [
        one for one in events(trip.at_b, trip.mirror).events if (one.what, one.result) == ("rebuild", "ARCHIVED")
    ]
    assert archived.details["retentionMs"] == LONGEST_RETENTION_MS
    assert sentence(archived).endswith("which keeps them for 30d; the rebuild continues")


def is_emptied(cluster: SandboxCluster, topic: str) -> bool:
    """Return whether brokers have deleted the only record of a topic."""
    return bounds_of(cluster, topic).start == 1


def assert_kept(cluster: SandboxCluster, archive: str, held: list[VisibleRecord], since_ms: int) -> None:
    """Check that an archive has these records with the time of their archiving, once brokers looked for old ones."""
    for _ in range(2):  # what is made once they have found the first one is found by another look through all logs
        old = unique_topic("old")
        make_topic(cluster, old, retention_ms="1")
        produce(cluster, old, ["old"])
        wait_until(partial(is_emptied, cluster, old))
    saved = shown(cluster, archive)
    assert [(one.key, one.value) for one in saved] == [(one.key, one.value) for one in held]
    assert all(abs(one.timestamp - since_ms) < 60_000 for one in saved)
    assert [dict(one.headers)["kmirror.timestamp"] for one in saved] == [b"%d" % one.timestamp for one in held]
    assert closest(cluster, archive) == CLOSEST


@pytest.mark.slow
def test_a_failback_says_how_long_the_archive_keeps_records(
    source_cluster: SandboxCluster, guarded: SandboxCluster, tmp_path: Path
) -> None:
    topic, plan = unique_topic(), tmp_path / "plan.json"
    with Trip(guarded, source_cluster) as trip:
        make_topic(guarded, topic, cleanup_policy="compact")
        produce(guarded, topic, ["common"])
        assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
        trip.copy_to_b()
        assert failover(trip.at_b, trip.mirror).result.exit_code == 0
        produce(guarded, topic, ["lost-1", "lost-2"])
        held = shown(guarded, topic)[1:]
        planned = trip.back(strategy=Strategy.OFFLINE, plan=str(plan))
        assert planned.result.exit_code == 0, planned.result
        until_ms = read_plan(plan).archives_kept_until_ms
        assert until_ms is not None
        assert abs(until_ms - now_ms() - LONGEST_RETENTION_MS) < 600_000
        done = trip.back(strategy=Strategy.RECREATE)
        assert done.result.exit_code == 0, done.result
        archive = archives_of(done)[topic]["archive"]
        (said,) = [one for one in done.result.warnings if archive in one]
        assert said.startswith(f"{archive} keeps records only for 30d after they were archived")
        assert_kept(guarded, archive, held, now_ms())


@pytest.mark.slow
def test_a_new_plan_archives_again_if_the_archive_soon_deletes_records(
    source_cluster: SandboxCluster, guarded: SandboxCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, plan = unique_topic(), tmp_path / "plan.json"
    first_append_ms = archive_admin._first_append_ms

    def aged(client: ClusterClient, archive: str, partitions: Collection[int]) -> int:
        age_ms = LONGEST_RETENTION_MS - 600_000 if archive.endswith(".1") else 0
        return first_append_ms(client, archive, partitions) - age_ms

    with Trip(guarded, source_cluster) as trip:
        make_topic(guarded, topic, cleanup_policy="compact")
        produce(guarded, topic, ["common"])
        assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
        trip.copy_to_b()
        assert failover(trip.at_b, trip.mirror).result.exit_code == 0
        produce(guarded, topic, ["lost-1", "lost-2"])
        held = shown(guarded, topic)[1:]
        archives = []
        for _ in range(2):
            planned = trip.back(strategy=Strategy.OFFLINE, plan=str(plan))
            assert planned.result.exit_code == 0, planned.result
            archives.append(archives_of(planned)[topic]["archive"])
        assert archives == [f"{topic}.kmirror-archive.1"] * 2, "it keeps them for long enough"
        monkeypatch.setattr(archive_admin, "_first_append_ms", aged)
        planned = trip.back(strategy=Strategy.OFFLINE, plan=str(plan))
        assert planned.result.exit_code == 0, planned.result
        archive = archives_of(planned)[topic]["archive"]
        assert archive == f"{topic}.kmirror-archive.2"
        until_ms = read_plan(plan).archives_kept_until_ms
        assert until_ms is not None
        assert until_ms > now_ms() + LONGEST_RETENTION_MS // 2
        assert [(one.key, one.value) for one in shown(guarded, archive)] == [(one.key, one.value) for one in held]


def recent(cluster: SandboxCluster, topic: str, records: int) -> None:
    """Append records that no retention deletes soon."""
    producer = whole_batches(topic, properties_of(cluster))
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
