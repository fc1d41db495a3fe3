"""Records planted in `__kmirror_state`, on the source or on the destination, by anyone who may write there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kmirror.engine.status.journal import Level
from kmirror.engine.worker_logins import Logins, require_logins
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, require_mirror
from kmirror.ops.jobs.topic_discovery import DiscoveryJob
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.records import DesiredState, EngineRecord, EngineState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter, decide_and_write
from kmirror_sandbox.cluster import SandboxCluster
from tests.attacks.conftest import SECRET
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.listener import Listener
from tests.support.mirrors import make_topic, new_mirror, outcomes, properties_of, selector
from tests.support.side_jobs import run_once

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {};"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true {};"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"

#: By name, the properties that make a host use something of its own; FOLDER has its secrets, HERE is the listener.
ATTACKS: dict[str, dict[str, str]] = {
    "a reference to a file": {"sasl.jaas.config": PLAIN.format("${file:FOLDER/app.properties:password}")},
    "a reference to a folder": {"sasl.jaas.config": PLAIN.format("${dir:FOLDER:key}")},
    "a reference to a variable": {"sasl.jaas.config": PLAIN.format("${env:APP_PASSWORD}")},
    "a path that leaves an allowed folder": {
        "sasl.jaas.config": PLAIN.format("${dir:HOME/.config/kmirror/../../../elsewhere:key}")
    },
    "a whole line by reference": {"sasl.jaas.config": "${file:FOLDER/app.properties:password}"},
    "a reference in another property": {"client.id": "${file:FOLDER/app.properties:password}"},
    "a reference as address": {"bootstrap.servers": "${env:APP_PASSWORD}"},
    "a number by reference": {"request.timeout.ms": "${env:APP_PASSWORD}"},
    "a name by reference": {"sasl.jaas.config": PLAIN.format("x").replace('"u"', '"${env:KMIRROR_OWN}"')},
    "a token file": {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": BEARER.format(""),
        ENDPOINT: "file:FOLDER/key",
    },
    "a token endpoint without TLS": {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": BEARER.format('clientId="c" clientSecret="${env:KMIRROR_OWN}"'),
        ENDPOINT: "http://HERE/token",
    },
    "a token endpoint with a secret in its address": {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": BEARER.format('clientId="c" clientSecret="${env:KMIRROR_OWN}"'),
        ENDPOINT: "https://HERE/token?key=${env:KMIRROR_OWN}",
    },
    "a trust store": {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "FOLDER/key",
    },
    "a key store": {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": "FOLDER/key"},
    "a store by reference": {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "${env:KMIRROR_OWN}",
    },
    "a keytab": {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": KERBEROS.format('keyTab="FOLDER/key" principal="kmirror@HOST"'),
    },
    "the tickets of this host": {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": KERBEROS.format("").replace("useKeyTab", "useTicketCache"),
    },
    "an address in front of another name": {"bootstrap.servers": "127.0.0.1\0.example.com:PORT"},
    "the AWS credentials of this host": {
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    },
}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this host variables: one of another program, and one of kmirror's own."""
    monkeypatch.setenv("APP_PASSWORD", SECRET)
    monkeypatch.setenv("KMIRROR_OWN", SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


def planted(attack: str, listener: Listener, secrets: Path) -> dict[str, str]:
    """Return the properties of an attack, for a source that is the listener."""
    named = {
        "FOLDER": str(secrets),
        "HERE": listener.address,
        "PORT": listener.address.rpartition(":")[2],
        "HOME": os.environ["HOME"],
    }
    properties = {
        "bootstrap.servers": listener.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN.format("${env:KMIRROR_OWN}"),
        **ATTACKS[attack],
    }
    for word, meant in named.items():
        properties = {key: value.replace(word, meant) for key, value in properties.items()}
    return properties


def plant(destination: Destination, mirror: str, properties: dict[str, str], *topics: str) -> None:
    """Write the records of a mirror without any check."""
    record = MirrorRecord(mirror, properties, {}, "another-cluster-idABCD", "eve@ops", 0)
    records = [
        TopicRecord(mirror, topic, topic, "A" * 22, "B" * 21 + "A", DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
        for topic in topics
    ]
    change(destination, mirror, lambda _: Changes((record, *records)))


def _stored(record: MirrorRecord, _: State) -> Changes:
    return Changes((record,))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.usefixtures("own")
def test_a_mirror_planted_on_the_destination_is_not_connected_to(
    attack: str, destination: Destination, listener: Listener, secrets: Path
) -> None:
    mirror, server = unique_topic("m"), destination.bootstrap_server
    properties = planted(attack, listener, secrets)
    plant(destination, mirror, properties, unique_topic())
    refused = [
        typed(server, "add", "--mirror", mirror, "--topics", "t"),
        typed(server, "add", "--mirror", mirror, "--topics", "t", "--dry-run"),
        typed(server, "config", "--mirror", mirror, "--set", "client.rack=r", "--dry-run"),
    ]
    shown = [
        typed(server, "describe", "--mirror", mirror),
        typed(server, "list"),
        typed(server, "failover", "--mirror", mirror, "--dry-run"),
        typed(server, "check", "--mirror", mirror),
    ]
    assert listener.received == []
    for done in refused:
        assert done.returncode == 3, done.stderr
    for done in (*refused, *shown):
        assert SECRET not in done.stdout + done.stderr
    assert [done.returncode for done in shown[:3]] == [0, 0, 0], shown[2].stderr
    assert shown[3].returncode == 3, shown[3].stdout
    # and in Spark's workers, by the same policy
    with pytest.raises(KmirrorError) as error:
        require_logins(
            Logins(mirror, require_mirror(destination.state(), mirror).source, {"bootstrap.servers": server}), 0
        )
    assert error.value.reason is Reason.SECRET_UNRESOLVED
    assert SECRET not in str(error.value)


@pytest.mark.usefixtures("own")
def test_no_verb_connects_to_it(destination: Destination, listener: Listener, secrets: Path, tmp_path: Path) -> None:
    mirror, topic = unique_topic("m"), unique_topic()
    plant(destination, mirror, planted("a reference to a folder", listener, secrets), topic)
    file = tmp_path / "back.properties"
    file.write_text(f"bootstrap.servers={destination.bootstrap_server}\n")
    for line in (
        ("report", "--html", str(tmp_path / "report.html")),
        ("wait", "--for", "healthy", "--timeout", "1s"),
        ("wait", "--for", "drained", "--timeout", "1s"),
        ("promote", "--dry-run"),
        ("promote", "--yes", "--timeout", "1s"),
        ("switchover", "--mirror-config", str(file), "--dry-run"),
        ("pause", "--dry-run"),
        ("recover", "--dry-run"),
        ("remove", "--topics", topic, "--dry-run"),
        ("describe", "--groups"),
        ("describe", "--settings"),
        ("events",),
        ("run", "--for", "1s"),
        ("failover", "--yes"),
        ("delete", "--yes"),
    ):
        done = typed(destination.bootstrap_server, line[0], "--mirror", mirror, *line[1:])
        assert done.returncode != 1, (line, done.stderr)
        assert SECRET not in done.stdout + done.stderr, line
        assert listener.received == [], line


@pytest.fixture
def upper(cluster_pair: ClusterPair, listener: Listener, secrets: Path) -> Callable[[str], None]:
    """Return what plants, on the source, a mirror with a topic, whose source is the listener."""

    def make(topic: str) -> None:
        with Destination.open(properties_of(cluster_pair.source)) as there:
            plant(there, unique_topic("evil"), planted("a reference to a folder", listener, secrets), topic)

    return make


@pytest.mark.usefixtures("own")
def test_a_mirror_planted_on_the_source_is_never_connected_to(
    cluster_pair: ClusterPair, destination: Destination, listener: Listener, upper: Callable[[str], None]
) -> None:
    prefix = unique_topic("planted")
    topic, later = f"{prefix}-a", f"{prefix}-b"
    make_topic(cluster_pair.source, topic)
    upper(topic)
    upper(later)
    mirror = new_mirror(destination, cluster_pair.source, topics_include=f"{prefix}.*")
    for dry_run in (True, False):
        done = add(destination, mirror, selector(topic), dry_run=dry_run)
        assert outcomes(done) == {topic: "DONE"}
        (warning,) = done.warnings
        assert "another-cluster-idABCD" in warning
    assert listener.received == []
    # new topics of the source are added by a running engine
    make_topic(cluster_pair.source, later)
    with closing(DiscoveryJob(mirror, destination.properties)) as job:
        events = run_once(job, destination, mirror)
    assert listener.received == []
    (unknown,) = (event for event in events if event.result == "UNKNOWN")
    assert unknown.level is Level.WARNING
    assert later in (unknown.note or "")
    assert "another-cluster-idABCD" in (unknown.note or "")
    # and it stays visible
    described = typed(destination.bootstrap_server, "describe", "--mirror", mirror)
    (note,) = (line for line in described.stderr.splitlines() if "another-cluster-idABCD" in line)
    assert topic in note
    assert later in note
    assert listener.received == []


@pytest.mark.parametrize("number", [1 << 31, (1 << 63) - 1, -1 << 63])
def test_an_engine_with_numbers_that_no_system_has_is_one_that_has_ended(destination: Destination, number: int) -> None:
    mirror, server, here = unique_topic("m"), destination.bootstrap_server, EngineIdentity.of_this_process()
    plant(destination, mirror, {"bootstrap.servers": "127.0.0.1:1"}, unique_topic())
    process = here.host, here.boot_id, number, number, None, "local[2]"
    record = EngineRecord(mirror, "its-lease", EngineState.RUNNING, *process, number, number, 3_000)
    change(destination, mirror, lambda _: Changes((record,)))
    for verb in ("describe", "list", "failover"):
        of_mirror = () if verb == "list" else ("--mirror", mirror)
        done = typed(server, verb, *of_mirror, *(("--yes",) if verb == "failover" else ()))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["n" * 300, "a/b", "n" * 40_000], ids=["long", "a path", "longer than a request has"])
def test_a_topic_that_kafka_cannot_have_hides_no_other_mirror(destination: Destination, name: str) -> None:
    mirror, other, server = unique_topic("m"), unique_topic("m"), destination.bootstrap_server
    for one, topic in ((mirror, name), (other, unique_topic())):
        plant(destination, one, {"bootstrap.servers": "127.0.0.1:1"}, topic)
    try:
        assert typed(server, "describe", "--mirror", other).returncode == 0
        listed = typed(server, "list")
        assert listed.returncode == 4, listed.stderr
        assert other in listed.stdout
        refused = typed(server, "failover", "--mirror", mirror, "--yes")
        assert refused.returncode == 3
        assert "Kafka has no topics of this name" in refused.stderr
    finally:
        with closing(StateWriter(destination.store, "operator", mirror)) as writer:
            decide_and_write(
                destination.store, writer, lambda state: Changes(tombstones=state.keys_of(mirror)), Deadline(60)
            )
    assert typed(server, "list").returncode == 0


def test_a_loop_is_found_by_names_and_cluster_ids_alone(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic("loop")
    make_topic(cluster_pair.source, topic)
    with Destination.open(properties_of(cluster_pair.source)) as there:
        plant(there, back := unique_topic("back"), {"bootstrap.servers": "nowhere.invalid:9092"}, topic)
        record = replace(require_mirror(there.state(), back), source_cluster_id=destination.cluster_id)
        change(there, back, lambda _: Changes((record,)))
    mirror = new_mirror(destination, cluster_pair.source)
    done = add(destination, mirror, selector(topic), dry_run=True)
    assert [row.reason for row in done.results] == [Reason.LOOP]
    assert done.warnings == ()


def test_a_longer_chain_is_followed_through_clusters_that_this_host_names(
    cluster_pair: ClusterPair,
    destination: Destination,
    passing_destination: SandboxCluster,
    listener: Listener,
    secrets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, middle = unique_topic("long"), passing_destination
    make_topic(cluster_pair.source, topic)
    for cluster, source_cluster_id in (
        (cluster_pair.source, middle.cluster_id),
        (middle, destination.cluster_id),
    ):
        with Destination.open(properties_of(cluster)) as there:
            plant(there, name := unique_topic("back"), planted("a keytab", listener, secrets), topic)
            record = replace(require_mirror(there.state(), name), source_cluster_id=source_cluster_id)
            change(there, name, partial(_stored, record))
    mirror = new_mirror(destination, cluster_pair.source)
    unknown = add(destination, mirror, selector(topic), dry_run=True)
    assert outcomes(unknown) == {topic: "DONE"}
    assert middle.cluster_id in unknown.warnings[0]
    config = tmp_path / "kmirror.toml"
    config.write_text(
        f'[clusters.middle]\nbootstrap-server = "{middle.bootstrap_servers}"\n'
        '[clusters.gone]\nbootstrap-server = "127.0.0.1:1"\n'
    )
    monkeypatch.setenv("KMIRROR_CONFIG", str(config))
    found = add(destination, mirror, selector(topic), dry_run=True)
    assert [row.reason for row in found.results] == [Reason.LOOP]
    assert found.warnings == ()
    assert listener.received == []
