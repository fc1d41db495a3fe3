"""What a sandbox broker starts from: ports, server.properties, and the description of its cluster on disk."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.errors import RefusedError, UsageError
from kmirror.java_properties import properties_text
from kmirror_sandbox.broker_config import (
    jaas_quoted,
    logging_option,
    logging_properties,
    server_properties,
    zookeeper_properties,
)
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.cluster_spec import ClusterSpec, SecuritySpec, load_spec, nodes_on, ports_needed, save_spec
from kmirror_sandbox.ports import LOOPBACK, free_ports, is_free


def spec_of(brokers: int, secured: bool = False, properties: Mapping[str, str] | None = None) -> ClusterSpec:
    ports = list(range(7001, 7001 + ports_needed(brokers, secured)))
    security = SecuritySpec({"admin": 'p"\\w'}, "store", authorizer=True) if secured else None
    nodes = nodes_on(ports, brokers, secured)
    return ClusterSpec("x", "id", "4.3.1", nodes, properties or {}, "512m", ("-XX:+UseSerialGC",), security)


def settings_of(spec: ClusterSpec, index: int = 0) -> dict[str, str]:
    text = server_properties(spec, spec.nodes[index], Path("/d/data"), Path("/d/tls"), Path("/d/store"))
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("brokers", "controllers"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_from_three_nodes_on_three_are_controllers_so_that_one_may_be_lost(brokers: int, controllers: int) -> None:
    spec = spec_of(brokers)
    roles = [settings_of(spec, index)["process.roles"] for index in range(brokers)]
    assert roles == ["broker,controller"] * controllers + ["broker"] * (brokers - controllers)
    assert len(spec.voters.split(",")) == controllers
    assert settings_of(spec)["offsets.topic.replication.factor"] == str(min(3, brokers))
    assert settings_of(spec)["transaction.state.log.min.isr"] == ("1" if brokers == 1 else "2")


def test_every_port_is_used_once() -> None:
    nodes = spec_of(3, secured=True).nodes
    ports = [port for node in nodes for port in (node.port, node.controller_port, node.internal_port)]
    assert sorted(port or 0 for port in ports) == list(range(7001, 7010))
    assert [node.port for node in nodes] == [7001, 7002, 7003]


def test_a_node_s_own_properties_go_before_the_cluster_s_and_are_stored(tmp_path: Path) -> None:
    own = {"1": {"num.io.threads": "3"}}
    spec = replace(spec_of(2, properties={"num.io.threads": "2"}), node_properties=own)
    save_spec(spec, tmp_path)
    assert [settings_of(load_spec(tmp_path), index)["num.io.threads"] for index in (0, 1)] == ["3", "2"]


def test_the_cluster_s_own_properties_have_the_last_word() -> None:
    assert settings_of(spec_of(1))["auto.create.topics.enable"] == "false"
    settings = settings_of(
        spec_of(1, properties={"auto.create.topics.enable": "true", "producer.id.expiration.ms": "3000"})
    )
    assert settings["auto.create.topics.enable"] == "true"
    assert settings["producer.id.expiration.ms"] == "3000"


def test_a_broker_without_controller_does_not_listen_as_one() -> None:
    settings = settings_of(spec_of(2), 1)
    assert settings["listeners"] == settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:7002"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:7003"


def test_brokers_before_kraft_are_a_cluster_through_zookeeper() -> None:
    for version, needed in (("2.8.2", True), ("3.2.3", True), ("3.3.2", False), ("3.10.0", False), ("4.3.1", False)):
        assert replace(spec_of(1), kafka_version=version).needs_zookeeper is needed
    spec = replace(spec_of(2), kafka_version="2.8.2")
    settings = settings_of(spec, 1)
    assert (settings["broker.id"], settings["zookeeper.connect"]) == ("2", f"{LOOPBACK}:{spec.zookeeper_port}")
    assert settings_of(spec)["listeners"] == "PLAINTEXT://127.0.0.1:7001"
    assert not {"process.roles", "node.id", "controller.quorum.voters"} & settings.keys()
    lines = zookeeper_properties(spec.zookeeper_port, Path("/d/data")).splitlines()
    assert {"clientPort=7003", "dataDir=/d/data", f"clientPortAddress={LOOPBACK}"} <= set(lines)


def test_a_secured_cluster_asks_clients_for_a_login_and_brokers_for_a_certificate() -> None:
    settings = settings_of(spec_of(1, secured=True))
    assert settings["advertised.listeners"] == "SASL_SSL://127.0.0.1:7001,INTERNAL://127.0.0.1:7003"
    assert settings["listener.name.internal.ssl.client.auth"] == "required"
    assert settings["listener.name.controller.ssl.client.auth"] == "required"
    assert settings["super.users"] == "User:sandbox-broker;User:admin"
    login = settings["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert login.endswith(r'PlainLoginModule required user_admin="p\\"\\\\w";')


def test_a_cluster_with_tiered_storage_keeps_segments_in_its_own_store() -> None:
    plain = settings_of(spec_of(3))
    assert not any(key.startswith(("remote.", "rsm.", "rlmm.")) for key in plain)
    settings = settings_of(replace(spec_of(3), tiered=True))
    assert settings["remote.log.storage.system.enable"] == "true"
    assert settings["remote.log.storage.manager.class.path"] == "/d/store/classes"
    assert settings["rsm.config.folder"] == "/d/store"
    assert settings["remote.log.metadata.manager.listener.name"] == "PLAINTEXT"
    assert settings["rlmm.config.remote.log.metadata.topic.replication.factor"] == "3"
    secured = settings_of(replace(spec_of(1, secured=True), tiered=True))
    assert secured["remote.log.metadata.manager.listener.name"] == "INTERNAL"
    assert secured["rlmm.config.remote.log.metadata.common.client.ssl.keystore.location"] == "/d/tls/node.p12"
    assert secured["rlmm.config.remote.log.metadata.topic.replication.factor"] == "1"


def test_values_are_quoted_for_java() -> None:
    assert jaas_quoted('a"b\\c') == r'"a\"b\\c"'
    assert properties_text({"k": "a\\b"}) == "k=a\\\\b\n"


def test_each_kafka_logs_its_own_way() -> None:
    log = Path("/d/server.log")
    assert "appender.file.fileName = /d/server.log" in logging_properties(4, log)
    assert "log4j.appender.file.File=/d/server.log" in logging_properties(3, log)
    assert logging_option(4, Path("/d/l")) == "-Dlog4j2.configurationFile=file:///d/l"
    assert logging_option(3, Path("/d/l")) == "-Dlog4j.configuration=file:///d/l"


def test_a_cluster_is_remembered_and_its_passwords_are_for_its_owner_only(tmp_path: Path) -> None:
    for spec in (spec_of(3), spec_of(1, secured=True), replace(spec_of(1, properties={"a.b": "c"}), complete=True)):
        save_spec(spec, tmp_path)
        assert load_spec(tmp_path) == spec
        assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert "p" + '"' not in repr(spec_of(1, secured=True))


def test_a_cluster_that_was_stored_without_later_keys_is_remembered(tmp_path: Path) -> None:
    save_spec(spec_of(1), tmp_path)
    stored = json.loads((tmp_path / "cluster.json").read_text())
    del stored["tiered"], stored["node_properties"]
    (tmp_path / "cluster.json").write_text(json.dumps(stored))
    assert load_spec(tmp_path) == spec_of(1)


def test_an_unreadable_description_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", json.dumps({"nodes": [{"port": 1}]})):
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(RefusedError, match="does not describe a sandbox cluster"):
            load_spec(tmp_path)


def test_free_ports_are_different_and_free_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(10_000 <= port < 49_152 for port in ports)
    assert all(is_free(port) for port in ports)


def test_a_port_that_was_chosen_is_not_chosen_again_here_or_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = free_ports(3)
    suggested = [first, first, second, third]
    program = (
        "import sys, random, kmirror_sandbox.ports as ports\n"
        "suggested = [int(port) for port in sys.argv[1:]]\n"
        "random.randint = lambda low, high: suggested.pop(0)\n"
        "print(*ports.free_ports(1))"
    )
    free = next(port for port in range(10_000, 32_000) if is_free(port) and port not in (first, second, third))
    chosen = subprocess.run(
        [sys.executable, "-c", program, *map(str, [*suggested, free])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(chosen.stdout) == free
    monkeypatch.setattr(random, "randint", lambda low, high: suggested.pop(0) if suggested else free)
    assert free_ports(1) == [free]


def test_ports_in_a_row_follow_each_other() -> None:
    row = free_ports(5, in_a_row=True)
    assert row == list(range(row[0], row[0] + 5))


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        assert not is_free(server.getsockname()[1])


@pytest.mark.parametrize("brokers", [0, -1, 10])
def test_a_number_of_brokers_that_cannot_be_is_refused(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(UsageError, match=f"invalid number of brokers: {brokers}"):
        SandboxCluster("x", tmp_path / "x", brokers=brokers)
