"""Logins by Kerberos: a real KDC, a real broker, and the system's own library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kmirror.cluster.connection import Connection
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.kerberos import KerberosLogin
from kmirror.errors import Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.groups import live_groups
from kmirror.ops.mirrors.create import create
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import QUICK_JAVA_OPTIONS, MakeCluster, archive_options, unique_topic
from tests.support.groups import member
from tests.support.kdc import REALM, Realm, kerberos_realm
from tests.support.leader import create_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, selector
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.wire import closed_port


@dataclass(frozen=True, slots=True)
class Guarded:
    """A cluster with a listener for Kerberos beside its plain one."""

    cluster: SandboxCluster
    realm: Realm
    port: int

    def properties(self, principal: str = "kmirror", **changes: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": self.realm.jaas(principal),
            **changes,
        }

    def refused(self, config: ClientConfig) -> UnreachableError:
        """Return why a connection is not to be had."""
        with pytest.raises(UnreachableError) as caught:
            Connection.open(LOOPBACK, self.port, config)
        return caught.value


@pytest.fixture(scope="module")
def guarded(make_module_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    port, plain, controller = free_ports(3)
    service = f"kafka/{LOOPBACK}"
    with kerberos_realm(tmp_path_factory.mktemp("kdc"), [service, "kmirror", "state"]) as realm:
        listeners = f"PLAINTEXT://{LOOPBACK}:{plain},KERBEROS://{LOOPBACK}:{port}"
        properties = {
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,KERBEROS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.kerberos.gssapi.sasl.jaas.config": realm.jaas(service),
        }
        options = (*QUICK_JAVA_OPTIONS, *archive_options(None), f"-Djava.security.krb5.conf={realm.krb5_conf}")
        cluster = make_module_cluster(
            "kerberos", ports=[plain, controller], heap=SMALL_HEAP, properties=properties, java_options=options
        )
        yield Guarded(cluster, realm, port)


@pytest.fixture(autouse=True)
def _realm(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(guarded.realm.krb5_conf))


@pytest.mark.slow
def test_a_source_is_mirrored_that_wants_tickets(guarded: Guarded, destination: Destination) -> None:
    topic = create_topic(guarded.cluster, name=unique_topic())
    produce(guarded.cluster, topic, ["one"])
    mirror = unique_topic("m")
    assert create(destination, mirror, guarded.properties()).exit_code == 0
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as local:
        local.catch_up()


@pytest.mark.slow
def test_a_destination_is_written_that_wants_tickets(guarded: Guarded, source_cluster: SandboxCluster) -> None:
    """With the keytab of one principal; the state, and what is asked of groups, need no other login."""
    topic, group = create_topic(source_cluster, name=unique_topic()), unique_topic("g")
    produce(source_cluster, topic, ["one"])
    mirror = unique_topic("m")
    with Destination.open(guarded.properties("state")) as destination:
        assert create(destination, mirror, source_cluster.client_properties()).exit_code == 0
        assert add(destination, mirror, selector(topic)).exit_code == 0
        with LocalEngine(destination, mirror) as local:
            local.catch_up()
        with member(guarded.cluster, group, topic):
            assert [(one.group, one.topics) for one in live_groups(destination, [topic])] == [(group, (topic,))]


@pytest.mark.slow
def test_who_is_not_known_is_refused(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = client_config(guarded.properties())
    assert isinstance(config.kerberos, KerberosLogin)
    for login, message in (
        (replace(config.kerberos, principal=f"nobody@{REALM}"), "no Kerberos login for nobody@"),
        (replace(config.kerberos, keytab=str(tmp_path / "none")), "none: No such file or directory"),
        (replace(config.kerberos, service_name="other"), "to other/127.0.0.1: Server other/"),
        (KerberosLogin("kafka", ticket_cache=str(tmp_path / "none")), "the owner of the ticket cache to kafka/"),
    ):
        error = guarded.refused(replace(config, kerberos=login))
        assert message in error.message
        assert error.reason is Reason.AUTHENTICATION_FAILED
    spare = tmp_path / "krb5.conf"
    spare.write_text(guarded.realm.krb5_conf.read_text().replace("kdc = ", f"kdc = {LOOPBACK}:{closed_port()}\n# "))
    monkeypatch.setenv("KRB5_CONFIG", str(spare))
    error = guarded.refused(replace(config, kerberos=replace(config.kerberos, keytab=f"/./{guarded.realm.keytab}")))
    assert (error.reason, error.hint) == (None, "check the KDCs of the realm in krb5.conf")
