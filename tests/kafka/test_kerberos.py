"""Logins by Kerberos: a real KDC, a real broker, and the system's own library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kmirror.cluster.connection import Connection
from kmirror.cluster.security import kerberos
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.kerberos import KerberosLogin
from kmirror.errors import Reason, UnreachableError, UsageError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.create import create
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import QUICK_JAVA_OPTIONS, MakeCluster, archive_options, unique_topic
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


@pytest.fixture
def _own_defaults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kerberos, "_DEFAULTS", kerberos._SystemDefaults())
    yield
    for name in kerberos._VARIABLES.values():
        os.unsetenv(name)


@pytest.mark.slow
@pytest.mark.usefixtures("_own_defaults")
def test_librdkafka_finds_the_tickets_of_one_login(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka takes the defaults of the system's library, whose keytab may have the keys of several principals."""
    login = client_config(guarded.properties("state")).librdkafka()
    assert {key: value for key, value in login.items() if key.startswith("sasl.")} == {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"state@{REALM}",
        "sasl.kerberos.min.time.before.relogin": 0,
    }
    mirrored = client_config(guarded.properties())
    with pytest.raises(UsageError, match=f"as state@{REALM} in this process, and cannot as kmirror@{REALM}"):
        mirrored.librdkafka()
    Connection.open(LOOPBACK, guarded.port, mirrored).close()
    default = replace(mirrored, kerberos=KerberosLogin("kafka"))
    error = guarded.refused(default)
    assert "librdkafka logs in with another one" in error.message
    assert 'ticketCache="PATH"' in str(error.hint)
    monkeypatch.setattr(kerberos, "_DEFAULTS", kerberos._SystemDefaults())
    Connection.open(LOOPBACK, guarded.port, default).close()
    os.unsetenv("KRB5_CLIENT_KTNAME")
    in_cache = replace(default, kerberos=KerberosLogin("kafka", f"state@{REALM}"))
    Connection.open(LOOPBACK, guarded.port, in_cache).close()


@pytest.mark.slow
@pytest.mark.usefixtures("_own_defaults")
def test_an_empty_cache_is_not_filled_from_librdkafkas_keytab(guarded: Guarded, tmp_path: Path) -> None:
    config = client_config(guarded.properties("state"))
    config.librdkafka()
    empty = replace(config, kerberos=KerberosLogin("kafka", ticket_cache=str(tmp_path / "none")))
    assert "no Kerberos login for the owner of the ticket cache" in guarded.refused(empty).message
