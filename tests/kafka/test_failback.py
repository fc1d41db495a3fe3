"""The old source comes back as the mirror of the new primary, on real brokers: A was mirrored to B, B is in charge."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.cli.main import main
from kmirror.cluster.protocol.topic_configs import TopicSetting
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import ExitCode, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.carry_out import MIRROR
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.failback.steps import RECREATED
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.groups import commit, committed, killed_member, member
from tests.support.json_documents import check_printed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, properties_of, selector
from tests.support.round_trip import CutOffError, Trip, archives_of, make_old_topic, under_way
from tests.support.visible import assert_mirrored, assert_sound, bounds_of, shown
from tests.support.waiting import wait_until


def has_partition(cluster: SandboxCluster, topic: str, partition: int) -> bool:
    return bounds_of(cluster, topic, partition) == (0, 0)


@pytest.mark.slow
def test_without_records_after_the_fork_only_the_delta_is_copied_twice_in_a_row(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic, partitions=2, records=50)
    commit(trip.a, group, topic, {0: 20})
    commit(trip.b, group, topic, {0: 52})
    produce(trip.b, topic, ["local-1", "local-2"])
    drill = trip.back(dry_run=True)
    assert drill.result.exit_code == 0
    assert trip.at_a.state().mirror(trip.mirror) is None
    done = trip.back()
    assert done.result.exit_code == 0, done.result
    assert drill.result.steps == done.result.steps
    assert {(row.topic, row.partition, row.result) for row in done.result.results} == {
        (topic, partition, Outcome.DONE) for partition in range(2)
    }
    assert archives_of(done) == {}
    # the marker of the failover and two records, of 53 offsets
    assert [one["offsetsToCopy"] for one in done.evidence["forks"]] == [3, 1]
    assert under_way(trip.at_a, trip.mirror) == []
    again = trip.back()
    assert {row.result for row in again.result.results} == {Outcome.NOOP}
    with LocalEngine(trip.at_a, trip.mirror, [GroupSyncJob(trip.mirror, trip.at_a.properties)]) as engine:
        engine.catch_up()
        trip.assert_same(topic, 2)
        # what was there from before was taken for kmirror's
        wait_until(lambda: committed(trip.a, group, topic) == {0: 52})
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_a, trip.mirror)))
        promoted = promote(trip.at_a, PromoteRequest(trip.mirror, idle_ms=0, timeout_ms=120_000))
    assert promoted.result.exit_code == 0, promoted.result
    # A is in charge again: who confuses the clusters now is warned
    confused = trip.back(dry_run=True).result
    assert [one for one in confused.warnings if f"{topic}: stopped here after the cluster that is to be copied" in one]
    assert not [one for report in (drill, done) for one in report.result.warnings if "stopped here after" in one]
    # B comes back under the same name; then all of it once more
    produce(trip.a, topic, ["at-a-again"])
    request = FailbackRequest(trip.mirror, properties_of(trip.a), watch_s=0.1)
    returned = failback(trip.at_b, request)
    assert returned.result.exit_code == 0, returned.result
    assert archives_of(returned) == {}
    trip.copy_to_b()
    assert_mirrored(trip.a, trip.b, topic)
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    produce(trip.a, topic, ["never-copied"])
    produce(trip.b, topic, ["local-3"])
    second = trip.back(strategy=Strategy.RECREATE)
    assert second.result.exit_code == 0, second.result
    assert archives_of(second)[topic]["records"] == 1
    assert not [one for one in (*returned.result.warnings, *second.result.warnings) if "stopped here after" in one]
    trip.copy_to_a()
    trip.assert_same(topic, 2)
    assert [record.value for record in shown(trip.a, topic)][-2:] == [b"at-a-again", b"local-3"]


def test_records_after_the_fork_are_archived_before_the_topic_is_recreated(trip: Trip) -> None:
    topic, clean = unique_topic(), unique_topic()
    synced, here_only = unique_topic("g"), unique_topic("g")
    trip.go(topic, clean)
    produce(trip.a, topic, ["lost-1", "lost-2"])
    lost = shown(trip.a, topic)[3:]
    produce(trip.b, topic, ["local-1"])
    commit(trip.a, synced, topic, {0: 5})
    commit(trip.b, synced, topic, {0: 4})
    commit(trip.a, here_only, topic, {0: 5})
    refused = trip.back()
    assert refused.result.exit_code == ExitCode.REFUSED
    assert refused.result.error is not None
    assert "--recreate" in str(refused.result.error.hint)
    assert {row.topic: row.result for row in refused.result.results} == {topic: Outcome.REFUSED, clean: Outcome.NOOP}
    assert any("2 records after it" in str(row.message) for row in refused.result.results)
    assert trip.back(dry_run=True).result.exit_code == 0
    drill = trip.back(strategy=Strategy.RECREATE, dry_run=True)
    assert trip.at_a.state().mirror(trip.mirror) is None
    done = trip.back(strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert drill.result.steps == done.result.steps
    kept = archives_of(done)[topic]
    assert kept == {"archive": f"{topic}.kmirror-archive.1", "records": 2}
    assert_holds(trip.a, kept["archive"], lost)
    # nothing but the records that both have may be taken for read
    assert committed(trip.a, here_only, topic) == {0: 3}
    with LocalEngine(trip.at_a, trip.mirror, [GroupSyncJob(trip.mirror, trip.at_a.properties)]) as engine:
        engine.catch_up()
        wait_until(lambda: committed(trip.a, synced, topic) == {0: 4})
    trip.assert_same(topic)
    trip.assert_same(clean)
    assert_sound(trip.a, topic)
    assert committed(trip.a, here_only, topic) == {0: 3}


@pytest.mark.slow
def test_discarded_records_are_gone(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    done = trip.back(strategy=Strategy.RECREATE, discard=True)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done) == {}
    assert f"{topic}.kmirror-archive.1" not in trip.at_a.client.metadata(None).topics
    trip.copy_to_a()
    trip.assert_same(topic)


@pytest.mark.slow
def test_all_of_the_new_primary_is_copied_whatever_the_file_says_about_the_start(trip: Trip) -> None:
    recreated, empty, absent = unique_topic(), unique_topic(), unique_topic()
    trip.go(recreated, absent)
    trip.go(empty, records=0)
    produce(trip.a, recreated, ["lost"])
    for topic in (recreated, empty, absent):
        produce(trip.b, topic, ["local"])
    admin = AdminClient(properties_of(trip.a))
    admin.delete_topics([absent])[absent].result(30)
    wait_until(lambda: absent not in admin.list_topics(timeout=30).topics)
    properties = {**properties_of(trip.b), "start.from": "latest"}
    request = FailbackRequest(trip.mirror, properties, strategy=Strategy.RECREATE, watch_s=0.1)
    done = failback(trip.at_a, request)
    assert done.result.exit_code == 0, done.result
    trip.copy_to_a()
    for topic in (recreated, empty, absent):
        trip.assert_same(topic)
        assert bounds_of(trip.a, topic, 0) == bounds_of(trip.b, topic, 0)


@pytest.mark.slow
def test_a_recreated_topic_keeps_its_replicas_and_the_settings_that_are_never_synced(
    make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> None:
    topic, name = unique_topic(), "min.insync.replicas"
    a = make_cluster("a", brokers=2, properties={"default.replication.factor": "1"})
    with Trip(a, cluster_pair.destination) as trip:
        trip.go(topic, min_insync_replicas="2")
        produce(a, topic, ["lost"])
        done = trip.back(strategy=Strategy.RECREATE)
        assert done.result.exit_code == 0, done.result
        archive = archives_of(done)[topic]["archive"]
        found = trip.at_a.client.metadata([topic, archive]).topics
        assert [found[one].replication_factor for one in (topic, archive)] == [2, 2]
        settings = topic_settings(trip.at_a.client, [topic], [name])[topic]
        assert settings == {name: TopicSetting("2", is_override=True)}
        trip.copy_to_a()
        trip.assert_same(topic)


def test_nothing_is_deleted_that_could_not_be_created_again(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    found = trip.at_a.client.metadata([topic]).topics[topic]
    for settings, why in (
        ({"topics.exclude": f"{topic}.*"}, f"{topic} is not deleted, .*topics.exclude of this mirror excludes {topic}"),
        ({"replication.factor": "9"}, f"{topic} is not deleted, .*INVALID_REPLICATION_FACTOR"),
        ({"topic.prefix": "b."}, "has topic.prefix=b.: topics would not keep their own names"),
    ):
        properties = {**properties_of(trip.b), **settings}
        request = FailbackRequest(trip.mirror, properties, strategy=Strategy.RECREATE, watch_s=0.1)
        with pytest.raises(RefusedError, match=why):
            failback(trip.at_a, request)
    assert trip.at_a.client.metadata([topic]).topics[topic].topic_id == found.topic_id
    assert trip.at_a.state().mirror(trip.mirror) is None


def test_the_new_primary_has_no_stored_state(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.b, topic, ["local"])
    with pytest.raises(RefusedError, match="has no mirror back,") as refused:
        failback(trip.at_a, FailbackRequest("back", properties_of(trip.b), watch_s=0.1))
    assert str(refused.value.hint).startswith("give the mirror's name there as --mirror, one of ")
    assert delete(trip.at_b, trip.mirror).exit_code == 0
    with pytest.raises(RefusedError, match="has no mirror") as refused:
        trip.back()
    assert "--topics" in str(refused.value.hint)
    done = trip.back(topic)
    assert done.result.exit_code == 0, done.result
    assert any("comparing contents only" in warning for warning in done.result.warnings)
    trip.copy_to_a()
    trip.assert_same(topic)


@pytest.mark.slow
def test_a_member_whose_process_was_killed_is_named_until_its_session_is_over(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic)
    killed_member(trip.a, group, topic, "billing-7", session_timeout_ms=6_000)
    with pytest.raises(RefusedError) as refused:
        trip.back()
    named = rf"1 group has members at 2\S+Z that .*: group {group} \({topic}\): billing-7 on 127.0.0.1 "
    assert re.match(named + r"\(member billing-7-\S+\)$", str(refused.value))
    hint, _, command = (refused.value.hint or "").partition("\n")
    assert "a dead one leaves the group when its session.timeout.ms has passed" in hint
    servers = f"--bootstrap-server {trip.a.bootstrap_servers}"
    assert command == f"kafka-consumer-groups {servers} --describe --members --group {group}"

    def is_refused() -> bool:
        try:
            trip.back()
        except RefusedError as again:
            return re.match(named, str(again)) is not None
        return False

    wait_until(lambda: not is_refused())
    assert trip.back().result.exit_code == 0
    trip.copy_to_a()
    trip.assert_same(topic)


def test_what_is_refused(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with pytest.raises(RefusedError, match="not stopped on the new primary"):
        trip.back()
    trip.copy_to_b()
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    for protocol in ("classic", "consumer"):
        with member(trip.a, group, topic, protocol), pytest.raises(RefusedError) as refused:
            trip.back()
        # a dead member is in the group until its session is over
        assert re.search(
            rf"at 2\S+Z that .*: group {group} \({topic}\): rdkafka on 127.0.0.1 \(member \S+\)$", str(refused.value)
        )
        assert f"--describe --members --group {group}" in (refused.value.hint or "")
        assert "session.timeout.ms" in (refused.value.hint or "")
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.02):
            produce(trip.a, topic, ["more"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(RefusedError, match=f"another client writes to {topic}-0"):
            failback(trip.at_a, FailbackRequest(trip.mirror, properties_of(trip.b), watch_s=1))
    finally:
        end.set()
        writer.join()
    producer = Producer({**properties_of(trip.a), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided", partition=0)
    producer.flush(30)
    with pytest.raises(RefusedError, match="a transaction is open"):
        trip.back()
    producer.abort_transaction(30)
    with pytest.raises(RefusedError, match="has no mirror"):
        failback(trip.at_b, FailbackRequest(trip.mirror, properties_of(trip.a), watch_s=0.1))
    request = FailbackRequest(trip.mirror, properties_of(trip.b), strategy=Strategy.RECREATE, watch_s=0.1)
    with pytest.raises(RefusedError, match="not confirmed"):
        failback(trip.at_a, request, lambda preview: trip.at_a.cluster_id not in preview.old_source)
    assert trip.at_a.state().mirror(trip.mirror) is None
    assert under_way(trip.at_a, trip.mirror) == []


@pytest.mark.long
def test_cut_off_after_each_step_and_run_again(trip: Trip) -> None:
    """Of one topic nothing is past the fork, of two something is; each run ends right after another step."""
    clean, group, dirty = unique_topic(), unique_topic("g"), [unique_topic(), unique_topic()]
    trip.go(clean, *dirty)
    commit(trip.a, group, clean, {0: 2})
    lost = {}
    for topic in dirty:
        produce(trip.a, topic, ["lost-1", "lost-2"])
        lost[topic] = shown(trip.a, topic)[3:]
        commit(trip.a, group, topic, {0: 5})
    reached: list[str] = []
    walked: list[str] = []

    def checkpoint(does: str) -> None:
        walked.append(does)
        if does not in reached:
            reached.append(does)
            raise CutOffError(does)

    done = None
    while done is None:
        walked.clear()
        drill = trip.back(strategy=Strategy.RECREATE, dry_run=True).result
        try:
            done = trip.back(strategy=Strategy.RECREATE, checkpoint=checkpoint)
        except CutOffError:
            assert set(walked) <= set(drill.steps or ()), "done, and not announced"
    assert done.result.exit_code == 0, done.result
    assert drill.steps == done.result.steps
    known = {*(step.does for step in MIRROR), *(step.does for step in RECREATED)}
    denials = {does for does in known if "denials" in does}  # no producer was blocked
    assert set(reached) == known - denials
    assert under_way(trip.at_a, trip.mirror) == []
    record = trip.at_a.state().group(trip.mirror, group)
    assert record is not None
    trip.copy_to_a()
    for topic, offset in ((clean, 2), *((topic, 3) for topic in dirty)):
        trip.assert_same(topic)
        assert committed(trip.a, group, topic) == {0: offset}
        assert record.ours(topic, 0)[0] == offset
    for topic in dirty:
        assert_holds(trip.a, f"{topic}.kmirror-archive.1", lost[topic])
        assert f"{topic}.kmirror-archive.2" not in trip.at_a.client.metadata(None).topics


def test_partitions_that_were_added_on_one_side_since(trip: Trip) -> None:
    more_there, more_here = unique_topic(), unique_topic()
    trip.go(more_there, more_here)
    for cluster, topic in ((trip.b, more_there), (trip.a, more_here)):
        admin = AdminClient(properties_of(cluster))
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        wait_until(partial(has_partition, cluster, topic, 1))
        produce(cluster, topic, ["in a new one"], 1)
    held = shown(trip.a, more_here, 1)
    assert trip.back(more_there).result.exit_code == 0
    done = trip.back(more_here, strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert_holds(trip.a, f"{more_here}.kmirror-archive.1", held, partition=1)
    trip.copy_to_a()
    trip.assert_same(more_there, 2)
    trip.assert_same(more_here)


@pytest.mark.slow
def test_the_command_asks_and_leaves_evidence(trip: Trip, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    file, report = tmp_path / "b.properties", tmp_path / "report.json"
    file.write_text(f"bootstrap.servers={trip.b.bootstrap_servers}\n")
    verb = ["failback", "--mirror", trip.mirror, "--mirror-config", str(file)]
    verb += ["--bootstrap-server", trip.a.bootstrap_servers]
    assert main(verb) == ExitCode.REFUSED
    assert "--recreate archives these records" in capsys.readouterr().err
    assert main([*verb, "--recreate"]) == ExitCode.REFUSED
    asked = capsys.readouterr().err
    assert f"source:       {trip.at_b.cluster_id} at {trip.b.bootstrap_servers}; it answers" in asked
    assert f"destination:  {trip.at_a.cluster_id} at {trip.a.bootstrap_servers}" in asked
    assert "1 record after it" in asked
    assert "add --yes" in asked
    words = [*verb, "--recreate", "--yes", "--json", "--report", str(report)]
    assert main(words) == 0
    out = capsys.readouterr().out
    check_printed(words, out)
    document = json.loads(out)
    assert (document["verb"], document["exitCode"], document["error"]) == ("failback", 0, None)
    evidence = json.loads(report.read_text())
    assert evidence["archives"] == {topic: {"archive": f"{topic}.kmirror-archive.1", "records": 1}}
    assert evidence["source"]["clusterId"] == trip.at_b.cluster_id
    assert [one["step"] for one in evidence["steps"]][:2] == ["looked", "begun"]
    for wrong in (["--recreate", "--offline"], ["--discard"], ["--offline"]):
        assert main([*verb, *wrong]) == ExitCode.USAGE
