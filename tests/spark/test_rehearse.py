"""`kmirror rehearse` on real clusters: planted faults are found and named, and production is left as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.rights.client_quotas import alter_quotas, describe_quotas
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import ExitCode
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.careless_check import ANSWER, EXIT_CODE, GROUP, RIGHTS, TOPIC
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.ending import killed_at_last, printed
from tests.support.engine import ROOT
from tests.support.json_documents import check as check_document
from tests.support.librdkafka import librdkafka
from tests.support.mirrors import make_topic, produce
from tests.support.topics import alter_topic
from tests.support.waiting import wait_until

USERS = {"mirror": "mirror-secret", "app": "app-secret"}
MONTH_MS, HOUR_MS = 2_592_000_000, 3_600_000
#: Records that an application writes to a topic whose copy has failed.
MORE = 50
RECORDS = 200
#: How long a rehearsal may take on a busy machine.
LONGEST_S = 480.0
CHECK = f"{sys.executable} -m tests.support.careless_check"
#: Rights by a prefix at the source, which the mirror syncs, whereas it leaves out those of others.
SYNCED = acls("topic", "ord", "batch", "READ", prefixed=True)
#: Each planted fault: the finding that must name it, what it is about, and words of its message.
PLANTED = {
    "a topic that the mirror may not read": ("RIGHT_MISSING", "secret", "READ"),
    "a quota on the mirror's user": ("SLOWED_BY_QUOTA", "the source's quota", "consumer_byte_rate"),
    "a longer retention at the source": ("SETTING_DIFFERS", "orders", "retention.ms is 2592000000"),
    "a larger max.message.bytes at the source": ("SETTING_DIFFERS", "orders", "max.message.bytes is 2000000"),
    "a larger min.insync.replicas at the source": ("SETTING_DIFFERS", "payments", "min.insync.replicas is 2"),
    "timestamps of the source's brokers": ("SETTING_DIFFERS", "payments", "message.timestamp.type is LogAppendTime"),
    "a group that the mirror leaves out": ("GROUP_NOT_SYNCED", "billing", "auto.offset.reset"),
    "a group that also reads another topic": ("GROUP_READS_MORE", "shipping", "outside"),
    "a changelog that is left out": ("STREAMS_TOPIC_LEFT_OUT", "counter", "counter-store-changelog"),
    "a schema topic that is left out": ("SCHEMAS_LEFT_OUT", "events", "7"),
    "records from the future": ("CLOCK_OFF", "who writes to future", "ahead"),
    "a right that is not synced": ("CLIENTS_LACK", "clients", "User:app lacks READ on 1 topic"),
    "a client's quota that is not synced": ("CLIENTS_LACK", "clients", "quota"),
    "a user without a credential there": ("CLIENTS_LACK", "clients", "SCRAM user"),
    "a transaction that is never ended": ("OPEN_TRANSACTION", "ledger", "transaction"),
    "a foreign write at the destination": ("NOT_COPIED", "payments", "DESTINATION_WRITTEN"),
    "a check that fails": ("CHECK_FAILED", CHECK, f"exit code {EXIT_CODE}: {ANSWER}"),
    "a topic of the destination's own that has the name of one": ("RIGHT_MISSING", "taken", "to the destination"),
    "a topic that the check has left": ("NOT_REMOVED", "topics", TOPIC),
    "a group that the check has left": ("NOT_REMOVED", "groups", GROUP),
    "rights that the check has left": ("NOT_REMOVED", "ACLs", "User:checker"),
    "an RTO that is not met": ("TOO_SLOW", "RTO", "at most 0.001 s"),
}


@dataclass(slots=True)
class Rehearsed:
    """One rehearsal: its exit code, its document, and the source and the destination before and after."""

    code: int
    stderr: str
    document: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    there_before: dict[str, Any]
    there_after: dict[str, Any]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.document["findings"])


def rehearse(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `kmirror rehearse`, which has no destination unless one is named."""
    words, pipe, env = line(*arguments), subprocess.PIPE, dict(environ or os.environ)
    with killed_at_last(subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=env)) as process:
        out, err = printed(process, LONGEST_S)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kmirror", "rehearse", *arguments]


def admin_of(cluster: SandboxCluster) -> AdminClient:
    return AdminClient(librdkafka(client_config(cluster.client_properties())))


def create(cluster: SandboxCluster, topic: str, **settings: str) -> None:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    admin = admin_of(cluster)
    admin.create_topics([NewTopic(topic, 1, 1, config=named)])[topic].result(30)


def seen_of(cluster: SandboxCluster) -> dict[str, Any]:
    """Return what a cluster has, as librdkafka and the brokers' own answers tell."""
    admin = admin_of(cluster)
    topics = sorted(name for name in admin.list_topics(timeout=30).topics if not name.startswith("__consumer"))
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    settings = {
        resource.name: {key: one.value for key, one in done.result(30).items()}
        for resource, done in (admin.describe_configs(resources) if resources else {}).items()
    }
    config = librdkafka(client_config(cluster.client_properties()))
    consumer = Consumer({**config, "group.id": "none"})
    ends = {name: consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30) for name in topics}
    consumer.close()
    listed = admin.list_consumer_groups().result()
    with ClusterClient(client_config(cluster.client_properties())) as client:
        rights = sorted(map(str, describe_acls(client)))
        quotas = sorted(map(str, describe_quotas(client)))
    return {
        "topics": topics,
        "settings": settings,
        "ends": ends,
        "groups": sorted(one.group_id for one in listed.valid),
        "acls": rights,
        "quotas": quotas,
    }


def commit(cluster: SandboxCluster, group: str, offsets: Mapping[str, int]) -> None:
    config = librdkafka(client_config(cluster.client_properties()))
    consumer = Consumer({**config, "group.id": group})
    consumer.commit(offsets=[TopicPartition(name, 0, one) for name, one in offsets.items()], asynchronous=False)
    consumer.close()


def plant(source: SandboxCluster) -> Producer:
    """Let the source have what production has, and what goes wrong there; return a producer in a transaction."""
    config = librdkafka(client_config(source.client_properties()))
    create(source, "orders", retention_ms=str(MONTH_MS), max_message_bytes="2000000")
    create(source, "payments", message_timestamp_type="LogAppendTime")
    for topic in ("secret", "events", "future", "ledger", "bulk", "taken", "outside", "counter-input"):
        create(source, topic)
    for topic in ("_schemas", "counter-store-changelog"):
        create(source, topic, cleanup_policy="compact")
    producer = Producer(config)
    for number in range(RECORDS):
        for topic in ("orders", "payments", "secret", "outside", "counter-input", "counter-store-changelog"):
            producer.produce(topic, key=str(number), value=f"value-{number}")
        producer.produce("events", value=b"\0" + (7).to_bytes(4, "big") + b"payload")
        producer.produce("bulk", value=os.urandom(20_000))
    producer.produce("_schemas", key='{"keytype":"SCHEMA"}', value=json.dumps({"subject": "events-value", "id": 7}))
    producer.produce("future", value="late", timestamp=int(time.time() * 1000) + HOUR_MS)
    assert producer.flush(60) == 0
    alter_topic(source, "payments", min_insync_replicas="2")
    commit(source, "billing", {"orders": 50})
    commit(source, "shipping", {"orders": 60, "outside": 10})
    commit(source, "counter", {"counter-input": 100})
    with ClusterClient(client_config(source.client_properties())) as client:
        mirrored = ("orders", "payments", "events", "future", "ledger", "bulk", "taken", "outside", "counter-input")
        give(
            client,
            *(acls("topic", name, "mirror", "READ", "DESCRIBE_CONFIGS") for name in (*mirrored, "_schemas")),
            acls("topic", "counter-store-changelog", "mirror", "READ", "DESCRIBE_CONFIGS"),
            acls("topic", "secret", "mirror", "DESCRIBE", "DESCRIBE_CONFIGS"),
            acls("group", "*", "mirror", "DESCRIBE"),
            acls("cluster", "kafka-cluster", "mirror", "DESCRIBE", "DESCRIBE_CONFIGS"),
            acls("topic", "orders", "app", "READ"),
            SYNCED,
        )
        wanted = [
            Quota((("user", "mirror"),), "consumer_byte_rate", 1_000_000.0),
            Quota((("user", "app"),), "producer_byte_rate", 1_000_000.0),
        ]
        assert not alter_quotas(client, wanted, [])
    hanging = Producer({**config, "transactional.id": "hanging", "transaction.timeout.ms": 600_000})
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce("ledger", value="pending")
    hanging.flush(30)
    return hanging


def furnish(destination: SandboxCluster) -> None:
    """Let the destination have what a rehearsal must leave alone; its user may do everything, but not see a topic."""
    create(destination, "taken", retention_ms=str(MONTH_MS))
    commit(destination, "shipping", {"taken": 0})
    with ClusterClient(client_config(destination.client_properties())) as client:
        give(
            client,
            *(acls(kind, "*", "kmirror", "ALL") for kind in ("topic", "group", "transactional_id")),
            acls("cluster", "kafka-cluster", "kmirror", "ALL"),
            acls("topic", "taken", "kmirror", "ALL", deny=True),
            acls("topic", "orders", "auditor", "READ"),
            acls("group", "shipping", "auditor", "READ"),
        )


def write_once_mirrored(
    source: SandboxCluster, destination: SandboxCluster, topic: str, is_over: threading.Event
) -> None:
    """Write a record to a mirror topic, as a super user, once it has the records of the source; then more to that."""
    config = librdkafka(client_config(destination.client_properties()))
    consumer = Consumer({**config, "group.id": "none"})
    try:
        while not is_over.wait(0.2):
            copied = 0
            with suppress(KafkaException):  # it does not exist yet, or has no leader
                copied = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
            if copied >= RECORDS:
                producer = Producer(config)
                producer.produce(topic, value="foreign")
                producer.flush(10)
                time.sleep(3)
                application = Producer({**librdkafka(client_config(source.client_properties())), "acks": 1})
                for number in range(MORE):
                    application.produce(topic, value=f"more-{number}")
                application.flush(10)
                return
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def rehearsed(make_module_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """One rehearsal with all planted faults, from a secured source to a secured cluster that is named."""
    folder = tmp_path_factory.mktemp("rehearse")
    source = make_module_cluster("production", secured=True, authorizer=True, users=USERS)
    destination = make_module_cluster("named", secured=True, authorizer=True)
    hanging = plant(source)
    furnish(destination)
    login = source.write_client_properties(folder / "login.properties", "mirror")
    (folder / "source.properties").write_text(
        "".join(f"{key}={value}\n" for key, value in source.client_properties("mirror").items() if key != JAAS)
        + f"{JAAS}=${{file:{login}:{JAAS}}}\n"
        "groups.exclude=billing\nsync.topic.acls.enabled=true\nacls.include=TOPIC;*;*;*;User:batch\n"
        "topic.properties.exclude=retention.ms,max.message.bytes,message.timestamp.type\n"
    )
    command_config = destination.write_client_properties(folder / "command.properties", "kmirror")
    before, there_before, is_over = seen_of(source), seen_of(destination), threading.Event()
    writer = threading.Thread(target=write_once_mirrored, args=(source, destination, "payments", is_over))
    writer.start()
    topics = "orders,payments,secret,events,future,ledger,bulk,taken,counter-input"
    try:
        done = rehearse(
            *("--mirror-config", str(folder / "source.properties"), "--topics", topics, "--json", "--whole"),
            *("--bootstrap-server", destination.bootstrap_servers, "--command-config", str(command_config)),
            *("--check", CHECK, "--rto", "1ms", "--live", "12s"),
            *("--out", str(folder / "evidence")),
            environ={**os.environ, "KMIRROR_TRUST_PATHS": f"{folder},{source.directory}"},
        )
    finally:
        is_over.set()
        writer.join()
    after = seen_of(source)
    hanging.abort_transaction(30)
    assert done.stdout, done.stderr
    (folder / "document.json").write_text(done.stdout)
    document = json.loads(done.stdout)
    check_document("rehearsal", document)
    (stored,) = (folder / "evidence").glob("*.json")
    assert json.loads(stored.read_text()) == document
    there_after = seen_of(destination)
    return Rehearsed(done.returncode, done.stderr, document, before, after, there_before, there_after)


JAAS = "sasl.jaas.config"


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_named(rehearsed: Rehearsed, fault: str) -> None:
    kind, subject, words = PLANTED[fault]
    found = [one for one in rehearsed.findings if one["finding"] == kind and one["subject"].startswith(subject)]
    assert any(words in one["message"] for one in found), rehearsed.findings


@pytest.mark.slow
def test_nothing_is_found_that_was_not_planted(rehearsed: Rehearsed) -> None:
    planted = {(kind, subject) for kind, subject, _ in PLANTED.values()}
    besides = [
        one
        for one in rehearsed.findings
        if not any(one["finding"] == kind and one["subject"].startswith(subject) for kind, subject in planted)
    ]
    assert besides == []


@pytest.mark.slow
def test_the_source_is_as_it_was(rehearsed: Rehearsed) -> None:
    begin, end = rehearsed.before["ends"]["payments"]
    rehearsed.before["ends"]["payments"] = (begin, end + MORE)  # written by an application
    assert rehearsed.after == rehearsed.before


@pytest.mark.slow
def test_what_was_lost_is_reported_and_counted(rehearsed: Rehearsed) -> None:
    loss = rehearsed.document["loss"]
    assert (loss["counted"], loss["reportedLeast"], loss["behind"]) == (MORE, MORE, 0)
    assert {one["topic"]: one["lostCounted"] for one in rehearsed.document["topics"]}["payments"] == MORE


@pytest.mark.slow
def test_the_named_destination_has_what_others_made_there_and_nothing_else(rehearsed: Rehearsed) -> None:
    before, after = rehearsed.there_before, rehearsed.there_after
    assert {*after["topics"]} - {"__transaction_state"} == {*before["topics"], TOPIC} == {"taken", TOPIC}
    assert (after["settings"]["taken"], after["ends"]["taken"]) == (before["settings"]["taken"], (0, 0))
    assert {*after["groups"]} == {*before["groups"], GROUP} == {"shipping", GROUP}
    (check,) = rehearsed.document["checks"]
    assert str(SYNCED[0]) in check["output"]
    assert {*after["acls"]} == {*before["acls"], *map(str, RIGHTS)}
    assert after["quotas"] == before["quotas"]


@pytest.mark.slow
def test_it_fails_and_is_carried_out_to_its_end(rehearsed: Rehearsed) -> None:
    assert rehearsed.code == rehearsed.document["exitCode"] == ExitCode.PARTLY_DONE
    assert "things that are wrong; the first: secret" in rehearsed.stderr
    phases = {one["phase"]: one["result"] for one in rehearsed.document["phases"]}
    assert phases["failover"] == phases["remove"] == "DONE"
    assert rehearsed.document["recovery"]["failedOver"] > 0


@pytest.fixture(scope="module")
def shop(cluster_pair: ClusterPair, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic with records, and the file of its source."""
    topic, file = unique_topic("shop"), tmp_path_factory.mktemp("shop") / "source.properties"
    make_topic(cluster_pair.source, topic, 2)
    produce(cluster_pair.source, topic, [f"value-{number}" for number in range(500)])
    file.write_text(f"bootstrap.servers={cluster_pair.source.bootstrap_servers}\n")
    return topic, file


@pytest.mark.slow
def test_without_a_destination_all_passes_and_the_second_page_shows_a_trend(
    cluster_pair: ClusterPair, shop: tuple[str, Path], tmp_path: Path
) -> None:
    (topic, file), evidence, seen = shop, tmp_path / "evidence", tmp_path / "seen"
    check = f"sh -c 'echo \"$KMIRROR_BOOTSTRAP_SERVER $KMIRROR_REHEARSAL_TOPICS\" > {seen}'"
    stop = threading.Event()

    def traffic() -> None:
        producer = Producer({"bootstrap.servers": cluster_pair.source.bootstrap_servers})
        while not stop.wait(0.01):
            producer.produce(topic, "live")
        producer.flush(10)

    writer = threading.Thread(target=traffic)
    writer.start()
    asked = ("--mirror-config", str(file), "--topics", topic, "--live", "6s", "--out", str(evidence))
    try:
        done = rehearse(*asked, "--check", check, "--rto", "5m")
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    server, topics = seen.read_text().split()
    assert server != cluster_pair.source.bootstrap_servers
    assert topics == topic
    (stored,) = evidence.glob("*.json")
    document = json.loads(stored.read_text())
    assert [one["result"] for one in document["phases"]] == ["DONE"] * 10
    (row,) = document["topics"]
    assert (row["written"], row["read"]) == (True, True)
    assert row["offsets"] > 500
    loss = document["loss"]
    assert loss["reportedLeast"] <= loss["counted"] <= max(loss["reportedMost"], 2 * loss["reportedMost"])
    (page,) = evidence.glob("*.html")
    assert "Earlier rehearsals" not in page.read_text()
    stored.write_text(stored.read_text().replace('"exitCode": 0', '"exitCode": 4', 1))
    time.sleep(1.1)  # files are named by the second
    again = rehearse(*asked)
    assert again.returncode == 0, again.stdout + again.stderr
    newest = max(evidence.glob("*.html"))
    assert newest != page
    assert "Earlier rehearsals" in newest.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_nothing_is_left(shop: tuple[str, Path], signum: int, tmp_path: Path) -> None:
    topic, file = shop
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            line("--mirror-config", str(file), "--topics", topic, "--live", "5m"),
            cwd=ROOT,
            env=environ,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: process.poll() is not None or b"copy 1 topic" in log.read_bytes(), 300)
        assert process.poll() is None, log.read_text()
        process.send_signal(signum)
        process.wait(120)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        error.add_note(log.read_text())
        process.terminate()
        process.wait(120)
        raise
    if signum == signal.SIGKILL:
        assert list(tmp_path.glob("kmirror-rehearsal-*"))
        # the next one, even if it is refused, removes what was left
        done = rehearse("--mirror-config", str(file), "--topics", topic, "--live", "0s", environ=environ)
        assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("kmirror-rehearsal-*"))
    assert "kmirror-rehearsal" not in running_below(tmp_path)


def running_below(folder: Path) -> str:
    """Return the command lines of processes that have to do with a folder."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return "\n".join(one for one in found.splitlines() if str(folder) in one)


@pytest.mark.slow
def test_a_destination_with_topics_is_refused(cluster_pair: ClusterPair, shop: tuple[str, Path]) -> None:
    _, file = shop
    make_topic(cluster_pair.destination, unique_topic("mine"))
    done = rehearse("--mirror-config", str(file), "--bootstrap-server", cluster_pair.destination.bootstrap_servers)
    assert done.returncode == ExitCode.REFUSED
    assert "not empty" in done.stderr
    done = rehearse("--mirror-config", str(file), "--bootstrap-server", cluster_pair.source.bootstrap_servers)
    assert done.returncode == ExitCode.REFUSED
    assert "the source itself" in done.stderr


@pytest.mark.slow
def test_what_cannot_be_rehearsed_is_refused_before_anything_is_started(shop: tuple[str, Path], tmp_path: Path) -> None:
    topic, file = shop
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    nothing = tmp_path / "nothing.properties"
    nothing.write_text("bootstrap.servers=localhost:1\n")
    secret = tmp_path / "secret.properties"
    secret.write_text(
        file.read_text()
        + "ssl.truststore.type=PEM\nssl.truststore.certificates=${env:KMIRROR_NOT_SET}\nsecurity.protocol=SSL\n"
    )
    for arguments, code, words in (
        (("--mirror-config", str(file), "--topics", "no-such-topic"), ExitCode.REFUSED, "no topic no-such-topic"),
        (("--mirror-config", str(nothing)), ExitCode.UNREACHABLE, "the source"),
        (("--mirror-config", str(secret)), ExitCode.REFUSED, "KMIRROR_NOT_SET"),
        (("--mirror-config", str(file), "--check", "no-such-program"), ExitCode.USAGE, "no program"),
        (("--mirror-config", str(file), "--whole", "--window", "1h"), ExitCode.USAGE, "exclude each other"),
    ):
        done = rehearse(*arguments, environ=environ)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    drill = rehearse("--mirror-config", str(file), "--dry-run", "--json", environ=environ)
    assert drill.returncode == 0, drill.stderr
    document = json.loads(drill.stdout)
    assert (document["verb"], document["dryRun"]) == ("rehearse", True)
    assert document["results"][0]["message"] == "would copy to two clusters on this machine, fail over and fail back"
    assert [row["message"] for row in document["results"] if row["topic"] == topic] == ["would copy 2 partitions"]
    assert tempfile.gettempdir() != str(tmp_path)
    assert not list(tmp_path.glob("kmirror-rehearsal-*"))
