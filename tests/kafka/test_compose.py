"""deploy/compose without Docker: each line against what reads it: a broker, kmirror's command line, the settings."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kmirror.cli.main import main as run_kmirror
from kmirror.cli.verbs import kmirror
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import read_properties
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.create import create
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic

FOLDER = Path(__file__).parent.parent.parent / "deploy/compose"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = ("source", "destination")
#: Settings that say where a broker is and stores: a sandbox has its own.
PLACED = {
    *("node.id", "process.roles", "controller.quorum.voters", "controller.listener.names", "listeners"),
    *("inter.broker.listener.name", "listener.security.protocol.map", "advertised.listeners", "log.dirs"),
}
#: By service, the keys of the Compose specification that are used.
KEYS = {
    *("image", "build", "command", "environment", "healthcheck", "ports", "volumes", "depends_on"),
    *("restart", "stop_grace_period"),
}


def properties_of_broker(service: str) -> dict[str, str]:
    """Return what the image makes of the environment: KAFKA_LOG_DIRS is log.dirs."""
    given = SERVICES[service]["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in given.items()
        if name.startswith("KAFKA_")
    }


@pytest.mark.slow
def test_a_broker_takes_each_property(make_cluster: MakeCluster) -> None:
    wanted = {service: properties_of_broker(service) for service in BROKERS}
    settings = {key: value for key, value in wanted["source"].items() if key not in PLACED}
    settings["inter.broker.listener.name"] = "PLAINTEXT"
    with Destination.open({"bootstrap.servers": make_cluster("compose", properties=settings).bootstrap_servers}) as one:
        (known,) = one.client.broker_configs([1], sorted(wanted["source"])).values()
    # two clusters differ in their addresses only, and no key is one that brokers ignore
    assert {key for key in PLACED & wanted["source"].keys() if wanted["source"][key] != wanted["destination"][key]} == {
        "listeners",
        "advertised.listeners",
    }
    assert wanted["source"].keys() == wanted["destination"].keys()
    assert [key for key in wanted["source"] if key not in known] == []
    assert {key: known[key] for key in settings} == settings


def test_listeners_ports_and_ids_fit() -> None:
    for service in BROKERS:
        given, properties = SERVICES[service], properties_of_broker(service)
        protocols = dict(one.split(":") for one in properties["listener.security.protocol.map"].split(","))
        listeners = dict(one.split("://:") for one in properties["listeners"].split(","))
        advertised = dict(one.split("://") for one in properties["advertised.listeners"].split(","))
        assert listeners.keys() == protocols.keys()
        assert advertised == {
            "INTERNAL": f"{service}:{listeners['INTERNAL']}",
            "HOST": f"127.0.0.1:{listeners['HOST']}",
        }
        assert given["ports"] == [f"127.0.0.1:{listeners['HOST']}:{listeners['HOST']}"]
        assert properties["controller.quorum.voters"] == f"1@localhost:{listeners['CONTROLLER']}"
        assert given["volumes"] == [f"{service}-data:{properties['log.dirs']}"]
        assert given["healthcheck"]["test"][-1] == f"localhost:{listeners['INTERNAL']}"
        assert given["image"] == f"docker.io/apache/kafka:{DEFAULT_KAFKA_VERSION}"
    ids = [SERVICES[service]["environment"]["CLUSTER_ID"] for service in BROKERS]
    assert [len(base64.urlsafe_b64decode(f"{one}==")) for one in ids] == [16, 16]
    assert len({*ids}) == 2, "a mirror refuses a source that is its destination"
    assert COMPOSE["volumes"].keys() == {f"{service}-data" for service in BROKERS}


def test_services_are_what_compose_knows_and_refer_to_what_is_there() -> None:
    # a key given twice silently wins in YAML
    assert COMPOSE.keys() == {"name", "services", "volumes", "x-kafka", "x-kmirror", "x-broker"}
    for name, service in SERVICES.items():
        assert service.keys() <= KEYS, name
        for other, need in service.get("depends_on", {}).items():
            state = need["condition"]
            assert state in ("service_healthy", "service_completed_successfully")
            # one that is waited for to be healthy can tell that it is
            assert state != "service_healthy" or "test" in SERVICES[other]["healthcheck"]
        for volume in service.get("volumes", []):
            from_, _ = volume.split(":", 1)
            assert from_ in COMPOSE["volumes"] or (FOLDER / from_).is_file()
        if "build" in service:
            build = service["build"]
            file = (FOLDER / build["context"] / build["dockerfile"]).read_text()
            assert re.search(rf"^FROM \S+ AS {build['target']}$", file, re.MULTILINE)
    lines = [line for line in TEXT.splitlines() if re.match(r"  KAFKA_", line)]
    assert len(lines) == len({line.split(":")[0] for line in lines})


def test_each_command_is_one_of_kmirrors() -> None:
    commands = [service["command"] for service in SERVICES.values() if "command" in service]
    fences = re.findall(r"```sh\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    typed = [line.split() for fence in fences for line in fence.splitlines()]
    runs = [words[words.index("--rm") + 1 :] for words in typed if "run" in words]
    assert {words[0] for words in runs} <= SERVICES.keys()
    commands += [words[1:] for words in runs]
    assert len(commands) >= 3 + len(runs)
    for words in commands:
        group: click.Command | None = kmirror
        rest = list(words)
        while isinstance(group, click.Group):
            context = click.Context(group)
            name, group, rest = group.resolve_command(context, rest)
            assert name, words
            assert group, words
        assert group is not None
        assert group.make_context("kmirror", rest).args == [], words
    # the engine runs the mirror that was created, its page has the port that is published
    create_words, run_words = SERVICES["create"]["command"], SERVICES["engine"]["command"]
    assert create_words[1:3] == run_words[1:3]
    assert SERVICES["engine"]["ports"] == ["127.0.0.1:9464:" + run_words[-1].split(":")[1]]
    file = create_words[create_words.index("--mirror-config") + 1]
    assert SERVICES["create"]["volumes"] == [f"./source.properties:{file}:ro"]


def test_the_file_makes_a_mirror_and_the_producer_writes(cluster_pair: ClusterPair, destination: Destination) -> None:
    given = read_properties(FOLDER / "source.properties")
    assert given["bootstrap.servers"] == "source:9092"
    server = cluster_pair.source.bootstrap_servers
    done = create(destination, unique_topic("m"), {**given, "bootstrap.servers": server}, dry_run=True)
    assert done.exit_code == 0, done
    topic = unique_topic()
    words = [
        topic if word == "orders" else server if word == "source:9092" else word
        for word in SERVICES["producer"]["command"]
    ]
    assert run_kmirror(words) == 0
    place = TopicPartition(topic, 0)
    with ClusterClient(client_config({"bootstrap.servers": server})) as client:
        assert client.list_offsets({place: LATEST})[place].offset == 1000
