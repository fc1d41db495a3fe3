"""Command lines of both ecosystems' documentation, with hosts and topics of ours, against real clusters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmirror.cli.name_cache import names_folder
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.ops.base.context import Destination
from kmirror.settings.parsing import stored_settings
from kmirror_compat import kafka_mirrors as compat
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, produce
from tests.support.visible import shown

KafkaMirrors = Callable[..., str]


@pytest.fixture
def kafka_mirrors(
    cluster_pair: ClusterPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> KafkaMirrors:
    """Run a command line as it is documented, expect an exit code, and return what it wrote to standard output."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    source = cluster_pair.source.bootstrap_servers
    (tmp_path / "a-to-b.properties").write_text(f"bootstrap.servers={source}\n", encoding="utf-8")
    (tmp_path / "client.properties").write_text("client.id=operator\n", encoding="utf-8")

    def run(line: str, code: int = 0) -> str:
        arguments = shlex.split(line.replace("HOST:9092", cluster_pair.destination.bootstrap_servers))
        ended = compat.main(arguments)
        captured = capsys.readouterr()
        assert ended == code, f"{line}: {ended}\n{captured.out}{captured.err}"
        return captured.out

    return run


def topics_of(pair: ClusterPair, stem: str, count: int) -> list[str]:
    """Make source topics with three records each."""
    topics = [f"{stem}-{number}" for number in range(count)]
    for topic in topics:
        # what is produced here is old: brokers would delete it as soon as the topic is no longer a mirror topic
        make_topic(pair.source, topic, retention_ms="-1")
        produce(pair.source, topic, ["one", "two", "three"])
    return topics


def column(table: str, name: str) -> list[str]:
    """Return a column of a table that was shown."""
    head, *rows = [line.split() for line in table.splitlines()]
    return [row[head.index(name)] for row in rows]


@pytest.mark.slow
def test_as_apache_kafka_documents_it(
    cluster_pair: ClusterPair, destination: Destination, kafka_mirrors: KafkaMirrors, tmp_path: Path
) -> None:
    stem, mirror = unique_topic("my-topic"), unique_topic("a-to-b")
    first, second = topics_of(cluster_pair, stem, 2)
    common = "--bootstrap-server HOST:9092 --command-config client.properties"
    created = kafka_mirrors(f"{common} --create --mirror {mirror} --mirror-config a-to-b.properties")
    assert created.splitlines()[-1] == f"Created mirror {mirror}"
    no_topics = kafka_mirrors(f"{common} --start --topics 'no-{stem}.*' --mirror {mirror} --allow-missing")
    assert f"No matching topics found yet. Patterns saved to mirror {mirror} for auto-discovery.\n" in no_topics
    started = kafka_mirrors(f"{common} --start --topics '{stem}.*' --mirror {mirror}")
    assert started.splitlines()[-1] == f"Started 2 topic(s) in mirror {mirror}: [{first}, {second}]"

    def described() -> dict[str, tuple[str, int, int]]:
        rows: list[dict[str, Any]] = json.loads(kafka_mirrors(f"{common} --describe --mirror {mirror} --json"))
        return {row["topic"]: (row["state"], row["destinationOffset"], row["lag"]) for row in rows}

    listed = kafka_mirrors(f"{common} --list").splitlines()
    assert listed[0].split() == ["MIRROR", "TOPICS", "SOURCE-CLUSTER-ID", "SOURCE-BOOTSTRAP-SERVER"]
    source = cluster_pair.source
    assert [mirror, "2", source.cluster_id, source.bootstrap_servers] in [line.split() for line in listed]
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert described() == {first: ("MIRRORING", 3, 0), second: ("MIRRORING", 3, 0)}
        paused = kafka_mirrors(f"{common} --pause --mirror {mirror} --topics {first}")
        assert f"Paused 1 topic(s) in mirror {mirror}: [{first}]\n" in paused
        assert described()[first][0] == "PAUSED"
        produce(cluster_pair.source, first, ["four"])
        resumed = kafka_mirrors(f"{common} --resume --mirror {mirror} --topics {first}")
        assert f"Resumed 1 topic(s) in mirror {mirror}: [{first}]\n" in resumed
        engine.catch_up()
        assert described()[first] == ("MIRRORING", 4, 0)
        # not its topics: refused as `kmirror` refuses it, and nothing is changed
        kafka_mirrors(f"{common} --stop --mirror {mirror} --topics other", code=3)
        kafka_mirrors(f"{common} --delete --mirror {mirror}", code=3)
        kafka_mirrors(f"{common} --remove --mirror {mirror} --topics {second}")
        stopped = kafka_mirrors(f"{common} --stop --mirror {mirror} --topics '.*'")
        assert f"Stopped [{first}, {second}] topic(s) in mirror {mirror}\n" in stopped
    assert {state for state, _, _ in described().values()} == {"STOPPED"}
    state = destination.state().mirror(mirror)
    assert state is not None
    assert state.discovery_ended
    failed = kafka_mirrors(f"{common} --describe --mirror {mirror} --failed").splitlines()
    assert failed == ["MIRROR  TOPIC  PARTITION  RETRY  ERROR"]
    produce(cluster_pair.destination, second, ["local"])
    assert [record.value for record in shown(cluster_pair.destination, second)] == [b"one", b"two", b"three", b"local"]
    # Tab knows the names, and forgets them with the mirror
    names = names_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")}) / cluster_pair.destination.cluster_id
    assert {f"{mirror} ", f"{mirror} {first}", f"{mirror} {second}"} <= {*names.read_text().splitlines()}
    assert f"Deleted mirror {mirror}\n" in kafka_mirrors(f"{common} --delete --mirror {mirror}")
    assert mirror not in column(kafka_mirrors(f"{common} --list"), "MIRROR")
    assert mirror not in names.read_text()


def test_failing_back_is_to_create_and_add_again_where_the_logs_agree(
    cluster_pair: ClusterPair, destination: Destination, kafka_mirrors: KafkaMirrors, tmp_path: Path
) -> None:
    stem, mirror = unique_topic("my-topic"), unique_topic("a-to-b")
    agreeing, parted = topics_of(cluster_pair, stem, 2)
    here, back = "--bootstrap-server HOST:9092", f"--bootstrap-server {cluster_pair.source.bootstrap_servers}"
    kafka_mirrors(f"{here} --create --mirror {mirror} --mirror-config a-to-b.properties")
    kafka_mirrors(f"{here} --add --topic '{stem}.*' --mirror {mirror}")
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    kafka_mirrors(f"{here} --remove --topic .* --mirror {mirror}")
    for topic in (agreeing, parted):
        produce(cluster_pair.destination, topic, ["new"])
    produce(cluster_pair.source, parted, ["lost"])
    text = f"bootstrap.servers={cluster_pair.destination.bootstrap_servers}\n"
    (tmp_path / "b-to-a.properties").write_text(text, encoding="utf-8")
    kafka_mirrors(f"{back} --create --mirror {mirror} --mirror-config b-to-a.properties")
    done = json.loads(kafka_mirrors(f"{back} --add --topic '{stem}.*' --mirror {mirror} --json", code=4))
    rows = {row["topic"]: row for row in done["results"] if row["topic"]}
    assert rows[agreeing]["result"] == "DONE"
    assert rows[parted]["result"] == "REFUSED"
    # with the numbers, and what continues from there
    assert "1 record" in rows[parted]["message"], rows[parted]
    assert "failback" in done["error"]["hint"], done["error"]
    with Destination.open({"bootstrap.servers": cluster_pair.source.bootstrap_servers}) as a:
        with LocalEngine(a, mirror) as engine:
            engine.catch_up()
        assert [one.value for one in shown(cluster_pair.source, agreeing)] == [b"one", b"two", b"three", b"new"]
        kafka_mirrors(f"{back} --stop --all-topics --mirror {mirror}")


def test_a_link_is_created_from_its_file_and_its_topics_with_configs_of_theirs(
    cluster_pair: ClusterPair, destination: Destination, kafka_mirrors: KafkaMirrors, tmp_path: Path
) -> None:
    (topic,) = topics_of(cluster_pair, unique_topic("demo"), 1)
    link, server = unique_topic("demo-link"), "--bootstrap-server HOST:9092"
    (tmp_path / "topic.properties").write_text("segment.ms=3600000\nflush.ms=1000\n", encoding="utf-8")
    kafka_mirrors(f"{server} --create --link {link} --config-file a-to-b.properties")
    record = destination.state().mirror(link)
    assert record is not None
    # a link syncs no groups unless its file says so
    assert not stored_settings(record.settings).sync_group_offsets_enabled
    created = kafka_mirrors(
        f"{server} --create --mirror-topic {topic} --link {link} --config-file topic.properties --config flush.ms=2000"
    )
    assert created.splitlines()[-1] == f"Created topic {topic}."
    configs = topic_settings(destination.client, [topic])[topic]
    assert not isinstance(configs, int)
    assert (configs["segment.ms"].value, configs["flush.ms"].value) == ("3600000", "2000")
    stopped = kafka_mirrors(f"--failover --topics {topic} {server}")
    assert stopped.splitlines()[-1] == f"Request for stopping topic {topic}'s mirror was successfully scheduled."


@pytest.mark.long
def test_as_confluent_documents_it(
    cluster_pair: ClusterPair, destination: Destination, kafka_mirrors: KafkaMirrors
) -> None:
    demo, lost, kept = topics_of(cluster_pair, unique_topic("demo"), 3)
    link, server = unique_topic("demo-link"), "--bootstrap-server HOST:9092"
    # what `kafka-cluster-links --create --link` does there
    kafka_mirrors(f"--create --link {link} --mirror-config a-to-b.properties {server}")
    kafka_mirrors(f"--create --mirror-topic {demo} --link {link} {server}")
    kafka_mirrors(f"{server} --create --source-topic {lost} --mirror-topic {lost} --link {link}")
    kafka_mirrors(f"--create --mirror-topic {kept} --link {link} --replication-factor 3 {server}", code=3)
    kafka_mirrors(f"--create --mirror-topic {kept} --link {link} {server}")
    assert column(kafka_mirrors(f"--describe --links {link} {server}"), "TOPIC") == [demo, lost, kept]
    assert column(kafka_mirrors(f"--list --link {link} {server}"), "TOPIC") == [demo, lost, kept]
    with LocalEngine(destination, link) as engine:
        engine.catch_up()
        kafka_mirrors(f"{server} --pause --topics {kept}")
        assert column(kafka_mirrors(f"--describe --topics {kept} {server}"), "STATE") == ["PAUSED"]
        kafka_mirrors(f"{server} --unpause --topics {kept}")
        kafka_mirrors(f"--failover --topics {lost} {server}")
        kafka_mirrors(f"--promote --topics {demo} {server}")
    # scripts wait for this line
    assert kafka_mirrors(f"--describe --topics {demo} --pending-stopped-only {server}") == "No mirror topics found.\n"
    for topic in (demo, lost):
        assert column(kafka_mirrors(f"--describe --topics {topic} {server}"), "STATE") == ["STOPPED"]
        produce(cluster_pair.destination, topic, ["local"])
        values = [record.value for record in shown(cluster_pair.destination, topic)]
        assert values == [b"one", b"two", b"three", b"local"], topic
    assert "NO_ENGINE (MIRRORING)" in kafka_mirrors(f"--describe --link {link} {server}")
    kafka_mirrors(f"--link {link} --failover {server}")
    assert {*column(kafka_mirrors(f"--describe --link {link} {server}"), "STATE")} == {"STOPPED"}
