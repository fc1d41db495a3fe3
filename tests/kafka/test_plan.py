"""`kmirror plan` on real brokers: an estate whose applications are known, least rights, and what changed since."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import kmirror
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.settings.patterns import TopicSelector
from kmirror_plan.migration_plan import VERSION
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.estates import FIFTY_APPLICATIONS, RealEstate
from tests.support.json_documents import check as check_document
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce
from tests.support.new_topics import create_and_wait
from tests.support.topics import set_topic
from tests.support.waiting import wait_until

SIZES = (4, 3, 10, 2, 6, 2, 8, 5)


@pytest.fixture(scope="module")
def estate(cluster_pair: ClusterPair) -> RealEstate:
    """Eight applications, a group that reads everything, and a producer that writes to all of them."""
    made = RealEstate(cluster_pair.source, SIZES, prefix=unique_topic("app"))
    made.groups[f"{made.prefix}.audit"] = made.topics
    made.producers["gateway"] = [min(some) for some in made.applications]
    made.write()
    return made


def file_of(cluster: SandboxCluster, folder: Path) -> str:
    """Write the file of `--mirror-config`."""
    file = folder / "source.properties"
    file.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
    return str(file)


def guarded_file(cluster: SandboxCluster, folder: Path) -> str:
    """Write the file of `--mirror-config` with a login of few rights."""
    config = folder / "source.properties"
    properties = cluster.client_properties("kmirror")
    secret = folder / "login.properties"
    secret.write_text(f"login={properties.pop('sasl.jaas.config')}\n")
    secret.chmod(0o600)
    lines = [f"{key}={value}" for key, value in properties.items()]
    config.write_text("\n".join([*lines, f"sasl.jaas.config=${{file:{secret}:login}}"]) + "\n")
    return str(config)


def planned(destination: SandboxCluster, *arguments: str) -> dict[str, Any]:
    done = typed(destination, "plan", *arguments, "--sample", "1s", "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def names(found: list[Mapping[str, Any]], key: str = "topic") -> set[str]:
    return {one[key] for one in found}


def test_applications_and_hubs_of_an_estate_are_found_and_no_wave_splits_one(
    cluster_pair: ClusterPair, estate: RealEstate, tmp_path: Path
) -> None:
    config = file_of(cluster_pair.source, tmp_path)
    plan = planned(
        cluster_pair.destination,
        *("--mirror-config", config, "--topics", f"{estate.prefix}.*"),
        *("--wave-bytes", "25KB", "--bandwidth", "1MB/s"),
    )
    assert names(plan["topics"]) == set(estate.topics)
    assert {frozenset(one["topics"]) for one in plan["applications"]} == set(estate.applications)
    hubs = [(one["kind"], one["name"]) for one in plan["hubs"]]
    assert [kind for kind, _ in hubs] == ["group", "producer"]
    assert hubs[0][1] == f"{estate.prefix}.audit"
    in_waves = [name for wave in plan["waves"] for name in wave["applications"]]
    assert sorted(in_waves) == sorted(names(plan["applications"], "name"))
    assert len(plan["waves"]) > 2
    for wave in plan["waves"]:
        assert (wave["exceeds"] is None) == (wave["bytes"] <= 25_000 or len(wave["applications"]) > 1)
        assert wave["copySeconds"] == pytest.approx(2 + wave["bytes"] / 1e6, abs=0.1)
    assert plan["unknown"] == []
    client = kmirror.Client(cluster_pair.destination.bootstrap_servers)
    again = client.plan(config, [f"{estate.prefix}.*"], sample=0, wave_bytes=25_000, bandwidth=1e6)
    assert [wave["topics"] for wave in again["waves"]] == [wave["topics"] for wave in plan["waves"]]
    # each producer wrote two records of 1,000 bytes: what brokers store is a little more
    written = Counter(topic for some in estate.producers.values() for topic in some)
    for topic in plan["topics"]:
        assert 2_000 * written[topic["topic"]] < topic["bytes"] < 2_500 * written[topic["topic"]]
        assert not topic["bytesAreEstimated"]


def test_the_folder_has_files_that_other_commands_take_and_says_what_changed(
    cluster_pair: ClusterPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = cluster_pair.source, cluster_pair.destination
    prefix, folder = unique_topic("shop"), tmp_path / "plan"
    orders, audit = f"{prefix}.orders", f"{prefix}-audit.(x)"
    make_topic(source, orders)
    produce(source, orders, ["one", "two"])
    config, mirror = Path(file_of(source, tmp_path)), unique_topic("m")
    with config.open("a") as file:
        file.write("topic.prefix=new.\ntopics.exclude=.*-not\n")
    make_topic(source, f"{prefix}-not")
    monkeypatch.chdir(tmp_path)
    first = planned(
        destination,
        *("--mirror-config", config.name, "--mirror", mirror, "--out", str(folder)),
        *("--config", f"topics.include={prefix}.*"),
    )
    check_document("migration-plan", json.loads((folder / "plan.json").read_text()))
    assert json.loads((folder / "plan.json").read_text()) == first
    names_here, names_there = "wave-01.topics", "wave-01-copies.topics"
    assert {file.name for file in folder.iterdir()} == {"plan.json", "plan.html", "runbook.md", names_here, names_there}
    assert (folder / names_here).read_text() == f"{orders}\n"
    # the commands of the runbook, in its folder: the wave is copied, and nothing else
    monkeypatch.chdir(folder)
    commands = [shlex.split(line)[1:] for line in (folder / "runbook.md").read_text().splitlines() if line[:1] == "k"]
    for verb in ("create", "add"):
        (words,) = [words for words in commands if words[:1] == [verb]]
        done = typed(destination, *words)
        assert done.returncode == 0, done.stderr
    assert f"new.{orders}" in done.stdout
    with Destination.open({"bootstrap.servers": destination.bootstrap_servers}) as opened:
        record = opened.state().mirror(mirror)
    assert record is not None
    assert not record.settings.get("topics.include")
    (words,) = [words for words in commands if words[:1] == ["wait"]]
    assert typed(destination, *words, "--timeout", "0s").returncode == ExitCode.TIMED_OUT

    def changes() -> set[tuple[str, str, str, str]]:
        done = typed(destination, "plan", "--against", str(folder), "--sample", "0s", "--json")
        assert done.returncode == 0, done.stderr
        return {(one["change"], one["kind"], one["name"], one["message"]) for one in json.loads(done.stdout)}

    assert changes() == set()
    admin = AdminClient({"bootstrap.servers": source.bootstrap_servers})
    admin.create_partitions([NewPartitions(orders, 3)])[orders].result(30)
    set_topic(source, orders, {"retention.ms": "1000000"})
    create_and_wait(admin, NewTopic(f"{prefix}.more", 1, 1))
    wait_until(lambda: len(admin.list_topics(timeout=30).topics[orders].partitions) == 3)
    found = changes()
    assert ("CHANGED", "topic", orders, "partitions: 1 → 3; retentionMs: 604800000 → 1000000") in found
    assert ("ADDED", "topic", f"{prefix}.more", "") in found
    assert ("ADDED", "application", f"{prefix}.more", "") in found
    assert audit not in str(found)


def test_the_report_shows_what_came_of_each_wave(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path
) -> None:
    source, prefix, folder = cluster_pair.source, unique_topic("moved"), tmp_path / "plan"
    for name in ("a", "b"):
        make_topic(source, f"{prefix}.{name}")
        produce(source, f"{prefix}.{name}", ["one", "two"])
    planned(
        cluster_pair.destination,
        *("--mirror-config", file_of(source, tmp_path), "--topics", f"{prefix}.*", "--out", str(folder)),
        *("--wave-bytes", "100", "--bandwidth", "1MB/s"),
    )
    mirror = new_mirror(destination, source)
    assert add(destination, mirror, TopicSelector.parse([f"@{folder / 'wave-01.topics'}"])).exit_code == 0

    def rows() -> list[list[Any]]:
        report = tmp_path / "report.html"
        options = ("--mirror", mirror, "--html", str(report), "--plan", str(folder))
        done = typed(cluster_pair.destination, "report", *options)
        assert done.returncode == 0, done.stderr
        script = re.compile('<script type="application/json" id="report">(.*?)</script>', re.DOTALL)
        (data,) = script.findall(report.read_text())
        (table,) = [one for one in json.loads(data)["tables"] if one["title"].startswith("Waves as planned")]
        return list(table["rows"])

    assert [row[:4] for row in rows()] == [[1, 1, "2s", None], [2, 1, "2s", None]]
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_ms for row in describe(destination, mirror)))
    first, second = rows()
    assert first[3] is not None
    assert re.fullmatch(r"copied in \d\.\d\d × the predicted time", first[4])
    assert second[3:] == [None, "not added to this mirror"]


def test_a_folder_with_other_files_is_not_used_and_nothing_to_plan_is_refused(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    destination, config = cluster_pair.destination, file_of(cluster_pair.source, tmp_path)
    done = typed(destination, "plan", "--mirror-config", config, "--out", str(tmp_path))
    assert (done.returncode, "has files that are not of a plan" in done.stderr) == (ExitCode.USAGE, True)
    done = typed(destination, "plan", "--mirror-config", config, "--topics", "no-such-topic", "--sample", "0s")
    assert (done.returncode, "no topic of the source" in done.stderr) == (ExitCode.REFUSED, True)
    done = typed(destination, "plan", "--against", str(tmp_path))
    assert (done.returncode, "plan.json" in done.stderr) == (ExitCode.USAGE, True)
    assert {file.name for file in tmp_path.iterdir()} == {"source.properties"}
    # a plan that was sent to this host names none of its secrets
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "${file:/etc/passwd:root}"}
    sent = {"version": VERSION, "mirrorConfig": {"bootstrap.servers": "b:9092", **login}, "options": {}}
    (tmp_path / "plan.json").write_text(json.dumps(sent))
    done = typed(destination, "plan", "--against", str(tmp_path))
    assert (done.returncode, "this host lets no mirror name /etc/passwd" in done.stderr) == (ExitCode.REFUSED, True)


@pytest.mark.slow
def test_with_least_rights_it_names_what_it_may_not_see(
    cluster_pair: ClusterPair, guarded_cluster: SandboxCluster, tmp_path: Path
) -> None:
    topic, hidden, ledger = unique_topic("seen"), unique_topic("hidden"), unique_topic("ledger")
    with ClusterClient(client_config(guarded_cluster.client_properties())) as admin:
        for name in (topic, hidden, ledger):
            create_topic(admin, name, 2, 1, {})
        give(admin, acls("topic", topic, "kmirror", "DESCRIBE"), acls("topic", ledger, "kmirror", "READ"))
        producer = Producer(librdkafka(admin.config, **{"transactional.id": unique_topic("payer")}))
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(ledger, f"paid-{number}", partition=0)
    producer.commit_transaction(30)
    plan = planned(cluster_pair.destination, "--mirror-config", guarded_file(guarded_cluster, tmp_path))
    assert topic in names(plan["topics"])
    assert hidden not in names(plan["topics"])
    (seen,) = [one for one in plan["topics"] if one["topic"] == topic]
    assert (seen["partitions"], seen["offsets"], seen["retentionMs"]) == (2, 0, None)
    unknown = {one["what"]: one["hint"] or "" for one in plan["unknown"]}
    assert {"the bytes of topics", "principals", "quotas", "SCRAM users"} <= unknown.keys()
    assert any(what.startswith("the settings of") for what in unknown)
    assert any(what.startswith("who writes to") for what in unknown)
    (ids,) = [what for what in unknown if what.startswith("the transactional ids")]
    assert ledger in ids
    assert "--transactional-id" in unknown[ids]
    assert "--operation DESCRIBE" in unknown["the bytes of topics"].replace("Describe", "DESCRIBE")
    assert (plan["principals"], plan["quotas"], plan["scramUsers"]) == (None, None, None)


@pytest.mark.slow
def test_what_has_a_partition_without_a_leader_shares_no_wave(
    three_brokers: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path
) -> None:
    prefix = unique_topic("led")
    admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers})
    stays, goes = (broker.node_id for broker in three_brokers.brokers[:2])
    for name, replicas in (("a", [[goes], [stays]]), ("b", [[stays]]), ("c", [[stays]])):
        create_and_wait(admin, NewTopic(f"{prefix}.{name}", len(replicas), replica_assignment=replicas))
        produce(three_brokers, f"{prefix}.{name}", ["one", "two"])
    three_brokers.kill(goes)
    wait_until(lambda: admin.list_topics(timeout=30).topics[f"{prefix}.a"].partitions[0].leader < 0)
    options = ("--mirror-config", file_of(three_brokers, tmp_path), "--topics", f"{prefix}.*", "--bandwidth", "1MB/s")
    for limit in ((), ("--wave-time", "1h")):
        plan = planned(destination_cluster, *options, *limit)
        found = [(wave["topics"], wave["bytes"] is None, wave["exceeds"]) for wave in plan["waves"]]
        assert found == [
            ([f"{prefix}.b", f"{prefix}.c"], False, None),
            ([f"{prefix}.a"], True, "the size of 1 topic is not known"),
        ]


@pytest.mark.slow
def test_bytes_of_topics_whose_settings_may_not_be_read_are_estimated_for_they_may_be_tiered(
    cluster_pair: ClusterPair, guarded_cluster: SandboxCluster, tmp_path: Path
) -> None:
    seen, whole = unique_topic("seen"), unique_topic("whole")
    with ClusterClient(client_config(guarded_cluster.client_properties())) as admin:
        for name in (seen, whole):
            create_topic(admin, name, 1, 1, {})
        rights = [acls("topic", name, "kmirror", "READ") for name in (seen, whole)]
        give(
            admin,
            *rights,
            acls("topic", whole, "kmirror", "DESCRIBE_CONFIGS"),
            acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE"),
        )
        producer = Producer(librdkafka(admin.config))
    for name in (seen, whole):
        producer.produce(name, "one")
    assert producer.flush(30) == 0
    plan = planned(cluster_pair.destination, "--mirror-config", guarded_file(guarded_cluster, tmp_path))
    found = {one["topic"]: one for one in plan["topics"]}
    assert {name: found[name]["bytesAreEstimated"] for name in (seen, whole)} == {seen: True, whole: False}
    assert found[seen]["bytes"] > 0
    (settings,) = [one for one in plan["unknown"] if one["what"] == f"the settings of {seen}"]
    assert "may be in remote storage" in settings["why"]


@pytest.mark.long
def test_an_estate_of_fifty_applications_and_two_thousand_topics(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    estate = RealEstate(cluster_pair.source, FIFTY_APPLICATIONS, prefix=unique_topic("big"))
    estate.groups[f"{estate.prefix}.audit"] = estate.topics
    estate.producers["gateway"] = [min(some) for some in estate.applications]
    estate.write()
    assert (len(estate.applications), len(estate.topics)) == (50, 2_000)
    plan = planned(
        cluster_pair.destination,
        *("--mirror-config", file_of(cluster_pair.source, tmp_path), "--topics", f"{estate.prefix}.*"),
    )
    assert {frozenset(one["topics"]) for one in plan["applications"]} == set(estate.applications)
    assert [one["kind"] for one in plan["hubs"]] == ["group", "producer"]
