"""A login to a source that is renewed while it is in use: only what the source takes is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.tokens import TOKENS, TokenSource
from kmirror.engine.driver.source_login import LoginReport, SourceLogin
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.leader import create_topic
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector
from tests.support.shared_clusters import GuardedPair
from tests.support.waiting import wait_until


class Login:
    """The login of an engine to a guarded source, whose password is in a file."""

    def __init__(self, cluster: SandboxCluster, file: Path) -> None:
        self.is_refused = False
        self._file = file
        self._line = cluster.client_properties("kmirror")["sasl.jaas.config"]
        self.properties = {
            **cluster.client_properties("kmirror"),
            "sasl.jaas.config": f"${{dir:{file.parent}:{file.name}}}",
        }
        self.store("kmirror-secret")
        self.source = SourceLogin(lambda: self.properties, cluster.cluster_id, lambda: self.is_refused)

    def store(self, password: str) -> None:
        self._file.write_text(self._line.replace("kmirror-secret", password))

    def is_due(self) -> bool:
        return self.source.is_due

    def renew(self) -> KmirrorError | None:
        """Renew it; return why it is not used."""
        report = self.source.renew()
        assert report is not None
        assert report.trouble is None or isinstance(report.trouble, KmirrorError)
        return report.trouble

    def refusal(self) -> Reason | None:
        error = self.renew()
        assert error is not None
        return error.reason


@pytest.fixture
def login(guarded_cluster: SandboxCluster, tmp_path: Path) -> Login:
    return Login(guarded_cluster, tmp_path / "login")


def test_what_is_asked_for_is_used_once_the_source_takes_it(login: Login, tmp_path: Path) -> None:
    source, before = login.source, login.source.config
    assert not login.is_due()
    source.ask()
    assert login.is_due()
    # a worker elsewhere may find something else under the same reference
    assert (login.renew(), source.config, login.is_due()) == (None, before, False)

    login.store("another one")
    assert not login.is_due(), "a file is looked at where that was asked for, or the source refuses what there is"
    source.ask()
    assert login.refusal() is Reason.AUTHENTICATION_FAILED
    assert source.config == before
    assert source.renew() is None, "the same refusal is no news"
    (tmp_path / "login").unlink()
    assert login.refusal() is Reason.SECRET_UNRESOLVED
    login.store("kmirror-secret")
    assert login.renew() is None
    assert not login.is_due()


def test_a_source_that_refuses_the_login_is_offered_another_one(login: Login) -> None:
    source, before = login.source, login.source.config
    login.is_refused = True
    assert login.is_due()
    # the one that is refused is not tried here, too
    assert (source.renew(), login.is_due()) == (None, False)
    login.store("another one")
    assert login.refusal() is Reason.AUTHENTICATION_FAILED
    login.properties["client.rack"] = "r1"
    login.store("kmirror-secret")
    assert source.renew() == LoginReport()
    assert (before.rack, source.config.rack) == ("", "r1")


def test_another_cluster_is_not_logged_in_to(login: Login, source_cluster: SandboxCluster) -> None:
    login.properties.clear()
    login.properties["bootstrap.servers"] = source_cluster.bootstrap_servers
    login.source.ask()
    assert login.refusal() is Reason.SOURCE_CLUSTER_CHANGED


@pytest.mark.slow
def test_what_config_changes_of_the_connection_is_taken_by_the_lanes_of_a_running_engine(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    source, topic = cluster_pair.source, unique_topic()
    make_topic(source, topic)
    produce(source, topic, ["one"])
    mirror = new_mirror(destination, source, copy_lanes="1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with LocalEngine(destination, mirror) as local:
        local.catch_up()
        assert change_config(destination, mirror, {"client.rack": "r1"}).exit_code == 0
        wait_until(lambda: len(local.lanes) == 2)
        produce(source, topic, ["two"])
        local.catch_up()
        assert [lane.spec.source_properties.get("client.rack") for lane in local.lanes] == [None, "r1"]
        wait_until(lambda: any("accepts the current login" in note for note in local.notes))
    (event,) = [one for one in destination.store.read_events(mirror) if one.what == "source"]
    assert event.result == "LOGIN_RENEWED"


@pytest.mark.slow
def test_lanes_and_state_outlive_the_tokens_they_log_in_with(
    guarded_pair: GuardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clusters are entered with tokens of a few seconds, and their ends are the ends of sessions."""
    source, topic = guarded_pair.source, unique_topic()
    login = source.client_properties("admin", "OAUTHBEARER")
    monkeypatch.setenv("KM_TEST_LOGIN", login["sasl.jaas.config"])
    create_topic(source, name=topic)
    properties = guarded_pair.destination.client_properties("admin", "OAUTHBEARER")
    endpoint = client_config(properties).tokens
    assert endpoint is not None
    monkeypatch.setenv("KMIRROR_TRUST_TOKEN_URLS", login["sasl.oauthbearer.token.endpoint.url"])
    with Destination.open(properties) as destination:
        mirror = unique_topic("m")
        assert create(destination, mirror, {**login, "sasl.jaas.config": "${env:KM_TEST_LOGIN}"}).exit_code == 0
        assert add(destination, mirror, selector(topic)).exit_code == 0
        with LocalEngine(destination, mirror) as local:
            for record in range(2):
                produce_with(source, topic, str(record))
                local.catch_up()
                if record == 0:
                    wait_for_another_token(endpoint)
            assert len(local.lanes) == 1
        partition = TopicPartition(topic, 0)
        with ClusterClient(client_config(properties)) as client:
            assert client.list_offsets({partition: LATEST})[partition].offset == 2


def wait_for_another_token(source: TokenSource) -> None:
    """Wait until the token in use has been replaced."""
    before = TOKENS.token(source, 10)
    wait_until(lambda: TOKENS.token(source, 10) != before)


def produce_with(cluster: SandboxCluster, topic: str, value: str) -> None:
    """Append one record with the login of an administrator by password."""
    producer = Producer(librdkafka(client_config(cluster.client_properties())))
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_a_password_that_is_refused_is_looked_for_in_its_file(guarded_cluster: SandboxCluster, tmp_path: Path) -> None:
    """As a destination, whose login is not renewed: new connections, and what writes the state, take the new one."""
    cluster, user, file = guarded_cluster, "nobody", tmp_path / "login"
    properties = cluster.client_properties(user)
    line, first, second = properties["sasl.jaas.config"], "nobody-secret", "changed-secret"
    third = "changed-again-secret"
    file.write_text(line)
    config = client_config({**properties, "sasl.jaas.config": f"${{dir:{tmp_path}:login}}"})
    state = StateStore(config)
    try:
        with ClusterClient(config) as client:
            file.write_text(line.replace(first, second))
            client.metadata([])
            assert state.login.password == first, "the one in use is not refused"
            set_password(cluster, user, second)
            client.close()
            client.metadata([])
            assert state.login.password == second
            AdminClient(librdkafka(state.login)).list_topics(timeout=30)
            set_password(cluster, user, third)
            file.write_text(line.replace(first, third))
            with pytest.raises(UnreachableError) as refused:
                StateWriter(state, "engine", "m").open(Deadline(30))
            assert refused.value.reason is Reason.NOT_AUTHORIZED, "the login is right, and nothing was granted"
            set_password(cluster, user, first)
            client.close()
            with pytest.raises(UnreachableError) as refused:
                client.metadata([])
            assert refused.value.reason is Reason.AUTHENTICATION_FAILED
            assert second not in f"{refused.value}{refused.value.hint}"
            file.write_text(line)
            client.metadata([])
            assert state.login.password == first
    finally:
        set_password(cluster, user, first)


def set_password(cluster: SandboxCluster, user: str, password: str) -> None:
    """Change a password, and wait until the broker knows it."""
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(user, credential, password.encode())
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(30)
    config = librdkafka(client_config(cluster.client_properties(user)), **{"sasl.password": password, "log_level": 0})

    def is_known() -> bool:
        try:
            return bool(AdminClient(config).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    wait_until(is_known)
