"""`check` says line by line what would work, and continues after what does not."""

from __future__ import annotations

import uuid

import pytest

from kmirror.errors import BrokerError, ExitCode, Reason, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.add.topic_admin import delete_topic
from kmirror.ops.base.context import Destination
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import CHECKS, CheckLine, Grade
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.topics import set_topic

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def problems(lines: tuple[CheckLine, ...]) -> list[tuple[str, str, Reason | None]]:
    return [(line.cluster, line.what, line.reason) for line in lines if not line.ok]


def test_a_working_mirror_is_ok_on_both_sides(cluster_pair: ClusterPair) -> None:
    topic, here = unique_topic(), properties_of(cluster_pair.destination)
    make_topic(cluster_pair.source, topic)
    with Destination.open(here) as destination:
        name = new_mirror(destination, cluster_pair.source)
        add(destination, name, selector(topic))
    heard: list[CheckLine] = []
    report = check(here, mirror=name, expect_cluster_id=cluster_pair.destination.cluster_id, on_line=heard.append)
    assert (report.exit_code, problems(report.lines), tuple(heard)) == (ExitCode.OK, [], report.lines)
    said = {(line.cluster, line.what): line.message for line in report.lines}
    for side, cluster in (("source", cluster_pair.source), ("destination", cluster_pair.destination)):
        assert cluster.cluster_id in said[side, "reachable"]
        assert said[side, "broker 1"].endswith(": Kafka 4.1 or later")
        assert "on 1 topic" in said[side, "rights on topics"]
    assert name in said["destination", "kmirror's memory"]
    assert said["destination", "filling offsets"] == "by markers"
    assert "anyone who can reach it can stop or damage every" in said["destination", "power over all mirrors"]
    assert said["destination", "trimming logs"] == "we have DELETE on 1 topic"
    assert [line.what for line in report.lines if line.hint] == []  # nothing to warn of
    assert list(report.to_json()) == ["exitCode", "checks"]
    assert list(CHECKS.document(report.lines[0])) == [
        "cluster",
        "check",
        "ok",
        "message",
        "hint",
        "reason",
        "guarantee",
    ]


def test_one_side_that_does_not_answer_does_not_hide_the_other(cluster_pair: ClusterPair) -> None:
    here, there = properties_of(cluster_pair.destination), properties_of(cluster_pair.source)
    down = check(NOBODY, properties=there)
    assert problems(down.lines) == [("destination", "reachable", Reason.DESTINATION_UNREACHABLE)]
    assert any(line.ok and line.cluster == "source" for line in down.lines)
    assert down.exit_code == ExitCode.UNREACHABLE
    no_source = check(here, properties=NOBODY)
    assert problems(no_source.lines) == [("source", "reachable", Reason.SOURCE_UNREACHABLE)]
    assert no_source.exit_code == ExitCode.UNREACHABLE


def test_a_refusal_is_a_line_too(cluster_pair: ClusterPair) -> None:
    here, unknown = properties_of(cluster_pair.destination), f"m-{uuid.uuid4().hex}"
    itself = check(here, properties=here)
    assert problems(itself.lines) == [("source", "another cluster", Reason.LOOP)]
    assert itself.exit_code == ExitCode.REFUSED
    missing = check(here, mirror=unknown)
    assert problems(missing.lines) == [("destination", "kmirror's memory", None)]
    other = check(here, properties=NOBODY, expect_cluster_id="another")
    assert problems(other.lines) == [("destination", "expected cluster", None)]  # the source's login is not used
    assert (missing.exit_code, other.exit_code) == (ExitCode.REFUSED, ExitCode.REFUSED)
    with pytest.raises(RefusedError, match="plaintext secrets are not stored"):
        check(here, properties={**here, "ssl.key.password": "x"})


def test_a_buffer_that_this_machine_does_not_give_is_warned_of_with_the_limit_to_raise(
    cluster_pair: ClusterPair,
) -> None:
    here = {**properties_of(cluster_pair.destination), "send.buffer.bytes": "2000000000"}
    there = {**properties_of(cluster_pair.source), "receive.buffer.bytes": "2000000000", "send.buffer.bytes": "50000"}
    report = check(here, properties=there)
    found = {(line.cluster, line.what): line for line in report.lines if line.what.endswith(".buffer.bytes")}
    assert {key: str(line.grade) for key, line in found.items()} == {
        ("destination", "send.buffer.bytes"): "warn",
        ("source", "receive.buffer.bytes"): "warn",
        ("source", "send.buffer.bytes"): "ok",
    }
    assert "sysctl -w net.core.wmem_max=2000000000" in (found["destination", "send.buffer.bytes"].hint or "")
    assert "sysctl -w net.core.rmem_max=2000000000" in (found["source", "receive.buffer.bytes"].hint or "")
    assert report.exit_code == ExitCode.OK


def test_settings_with_which_the_state_would_be_lost_are_reported(make_cluster: MakeCluster) -> None:
    unclean = "unclean.leader.election.enable"
    cluster = make_cluster("memory", heap=SMALL_HEAP, properties={unclean: "true"})
    here = properties_of(cluster)
    with Destination.open(here) as destination:
        destination.store.ensure_topics(1)
    what = "settings of kmirror's topics"
    assert [line.ok for line in check(here).lines if line.what == what] == [True]
    set_topic(cluster, STATE_TOPIC, {"cleanup.policy": "compact,delete", "max.message.bytes": "1000", unclean: "true"})
    set_topic(cluster, EVENTS_TOPIC, {"retention.ms": "60000"})
    report = check(here)
    found = {line.message: (line.ok, line.hint or "") for line in report.lines if line.what == what}
    assert report.exit_code == ExitCode.REFUSED
    assert {message: ok for message, (ok, _) in found.items()} == {
        f"{STATE_TOPIC} has cleanup.policy=compact,delete: older records are deleted": False,
        f"{STATE_TOPIC} has max.message.bytes=1000: larger records are refused": False,
        f"{STATE_TOPIC} has {unclean}=true: a leader that lacks records may be elected": False,
        f"{EVENTS_TOPIC} has retention.ms=60000: older records are deleted": True,
    }
    assert all("kafka-configs" in hint for _, hint in found.values())


def test_a_destination_that_deletes_no_topics_is_warned_of_and_says_so_itself(make_cluster: MakeCluster) -> None:
    cluster, topic = make_cluster("kept", heap=SMALL_HEAP, properties={"delete.topic.enable": "false"}), unique_topic()
    make_topic(cluster, topic)
    report = check(properties_of(cluster))
    (line,) = [line for line in report.lines if line.what == "deleting topics"]
    assert line.grade is Grade.WARN
    assert line.message.startswith("delete.topic.enable=false on broker 1: ")
    said = rf"^deleting topic {topic}: TOPIC_DELETION_DISABLED \(73\): set delete.topic.enable=true "
    with Destination.open(properties_of(cluster)) as destination:
        topic_id = destination.client.metadata([topic]).topics[topic].printed_topic_id
        with pytest.raises(BrokerError, match=said):
            delete_topic(destination.client, topic, topic_id)
