"""Connections to real brokers: what each way of failing becomes, TLS and logins."""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata import MetadataRequest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import (
    MAX_FRAME_BYTES,
    MAX_HANDSHAKE_FRAME_BYTES,
    ConnectFailedError,
    Connection,
    UnsupportedVersionError,
)
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch import batch_headers, set_producer
from kmirror.cluster.protocol.wire import Api, FrameError
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.token_endpoint import TokenEndpoint
from kmirror.cluster.security.tokens import TOKENS
from kmirror.cluster.stream import Stream
from kmirror.errors import ExitCode, OutcomeUnknown, Reason, UnreachableError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.frames import PLAIN, receive
from tests.support.key_stores import keytool, pkcs12_of
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic
from tests.support.librdkafka import librdkafka
from tests.support.tls import write_tls_files
from tests.support.wire import Wire, closed_port, cut_to, hang_up, listener, swallow

HURRIED = replace(PLAIN, connect_timeout_ms=300, request_timeout_ms=300)


def metadata() -> Any:
    return MetadataRequest(topics=[], allow_auto_topic_creation=False)


@pytest.fixture
def wire(destination_cluster: SandboxCluster) -> Iterator[Wire]:
    """Return a network to a real broker that can be spoiled."""
    broker = destination_cluster.brokers[0]
    made = Wire(broker.host, broker.port)
    yield made
    made.close()
    assert made.all_fired


@pytest.fixture
def connection(wire: Wire) -> Iterator[Connection]:
    made = Connection.open(wire.host, wire.port, PLAIN)
    yield made
    made.close()


# -- the good case ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the sizes that Linux gives")
def test_the_users_buffers_are_set_before_the_window_of_a_connection_is_agreed(wire: Wire) -> None:
    asked = replace(PLAIN, receive_buffer_bytes=20_000, send_buffer_bytes=30_000)
    scales = []
    for config in (PLAIN, asked):
        with closing(Connection.open(wire.host, wire.port, config)) as made:
            scales.append(made.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[6] >> 4)
            found = [made.socket.getsockopt(socket.SOL_SOCKET, o) for o in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert found == [40_000, 60_000]  # Linux reports the double
    assert scales[0] > 0 == scales[1]  # a buffer of this size needs no scale


def test_requests_are_answered_in_a_version_both_sides_speak(connection: Connection, wire: Wire) -> None:
    for _ in range(3):
        assert [b.node_id for b in connection.request(metadata(), highest=12).brokers] == [1]
    assert connection.version_for(Api(3, "Metadata", 0, 12)) == 12
    assert not connection.must_be_replaced
    assert repr(connection) == f"<Connection 127.0.0.1:{wire.port} open>"
    connection.close()
    connection.close()
    assert repr(connection) == f"<Connection 127.0.0.1:{wire.port} closed>"


def test_a_version_the_broker_does_not_speak_is_refused_by_name(connection: Connection) -> None:
    with pytest.raises(UnsupportedVersionError, match="does not offer Fetch version 99 to 100") as caught:
        connection.version_for(Api(1, "Fetch", 99, 100))
    assert "kmirror check" in str(caught.value.hint)
    with pytest.raises(UnsupportedVersionError):
        connection.version_for(Api(4711, "Nothing", 0, 0))


# -- no connection ----------------------------------------------------------------------------------------------------


def test_a_port_without_a_listener() -> None:
    with pytest.raises(ConnectFailedError, match=r"cannot connect to 127\.0\.0\.1:.*onnection refused") as caught:
        Connection.open("127.0.0.1", closed_port(), PLAIN)
    assert caught.value.exit_code is ExitCode.UNREACHABLE


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ConnectFailedError, match=r"cannot connect to no-such-host\.invalid:9092"):
        Connection.open("no-such-host.invalid", 9092, PLAIN)


def test_a_listener_that_never_answers() -> None:
    with listener(lambda sock: None) as port, pytest.raises(ConnectFailedError, match="timed out"):
        Connection.open("127.0.0.1", port, HURRIED)


def test_a_listener_that_hangs_up() -> None:
    with listener(socket.socket.close) as port, pytest.raises(ConnectFailedError, match="handshake") as caught:
        Connection.open("127.0.0.1", port, PLAIN)
    assert "wants TLS or SASL" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "responds in HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "may not be a Kafka broker"),
        (b"220 mail.example.org ESMTP\r\n", "may not be a Kafka broker"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "responds in TLS"),  # an alert
        (struct.pack(">i", MAX_HANDSHAKE_FRAME_BYTES + 1), "may not be a Kafka broker"),
        (struct.pack(">i", -1), "may not be a Kafka broker"),
        (struct.pack(">i", 3), "may not be a Kafka broker"),
        (struct.pack(">ii", 4, 1), "cannot be read"),  # an empty answer
        (struct.pack(">ii", 20, 1) + b"\xff" * 16, "refuses ApiVersions with error -1"),
        (struct.pack(">ii", 8, 4711) + bytes(4), "different request"),
    ],
)
def test_something_that_is_not_kafka(greeting: bytes, said: str) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(greeting)

    with listener(greet) as port, pytest.raises(ConnectFailedError, match=f"127.0.0.1:{port}") as caught:
        Connection.open("127.0.0.1", port, PLAIN)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert said in str(caught.value)


# -- a connection that breaks -----------------------------------------------------------------------------------------


def test_no_answer_in_time_leaves_the_outcome_unknown(connection: Connection, wire: Wire) -> None:
    wire.spoil(swallow)
    with pytest.raises(OutcomeUnknown, match="timed out"):
        connection.request(metadata(), highest=12, timeout=0.2)
    assert connection.socket.fileno() < 0


def test_hanging_up_instead_of_an_answer_leaves_the_outcome_unknown(connection: Connection, wire: Wire) -> None:
    wire.spoil(hang_up)
    with pytest.raises(OutcomeUnknown, match="closed the connection"):
        connection.request(metadata(), highest=12)
    with pytest.raises(OutcomeUnknown):  # and it stays broken
        connection.request(metadata(), highest=12)


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 30])
def test_half_an_answer_leaves_the_outcome_unknown(connection: Connection, wire: Wire, kept: int) -> None:
    wire.spoil(lambda frame: frame[:kept])
    with pytest.raises(OutcomeUnknown, match="timed out"):
        connection.request(metadata(), highest=12, timeout=0.2)
    assert connection.socket.fileno() < 0


@pytest.mark.parametrize("size", [-5, 0, 3, MAX_FRAME_BYTES + 1, 0x7FFFFFFF])
def test_a_size_that_cannot_be_is_a_frame_error(connection: Connection, wire: Wire, size: int) -> None:
    wire.spoil(lambda frame: struct.pack(">i", size) + frame[4:])
    with pytest.raises(FrameError, match=f"sent a response of {size} bytes"):
        connection.request(metadata(), highest=12)
    assert connection.socket.fileno() < 0


def test_an_answer_to_another_request_is_a_frame_error(connection: Connection, wire: Wire) -> None:
    wire.spoil(lambda frame: frame[:4] + struct.pack(">i", 4711) + frame[8:])
    with pytest.raises(FrameError, match="responded to a different request"):
        connection.request(metadata(), highest=12)
    assert connection.socket.fileno() < 0


def test_an_answer_cut_off_anywhere_is_a_frame_error(wire: Wire) -> None:
    whole = b""

    def keep(frame: bytes) -> bytes:
        nonlocal whole
        whole = frame
        return frame

    connection = Connection.open(wire.host, wire.port, PLAIN)
    wire.spoil(keep)
    connection.request(metadata(), highest=12)
    for kept in range(8, len(whole) - 1):
        wire.spoil(cut_to(kept))
        with pytest.raises(FrameError, match="to MetadataRequest cannot be read"):
            connection.request(metadata(), highest=12)
        assert connection.socket.fileno() < 0
        connection = Connection.open(wire.host, wire.port, PLAIN)
    connection.close()


def test_a_throttle_is_waited_out_before_the_next_request(destination_cluster: SandboxCluster) -> None:
    """A quota on produced bytes makes the broker ask for a pause with its answer."""
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    client_id = "throttled"

    def quota(client: ClusterClient, *, remove: bool) -> None:
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
                    ops=[entry.OpData(key="producer_byte_rate", value=200_000.0, remove=remove)],
                )
            ],
            validate_only=False,
        )
        assert [one.error_code for one in client.ask_any(request).entries] == [0]

    with Leader(destination_cluster, create_topic(destination_cluster)) as leader:
        quota(leader.client, remove=False)
        try:
            connection = leader.connection
            append = produce.Append(leader.partition.topic, leader.topic_id, 0, batch_of(value=b"x" * 400_000))
            for _ in range(50):  # until the quota is known to the broker
                correlation_id, version = connection.next_correlation_id(), leader.produce_version
                request = produce.request(correlation_id, version, client_id, [append], acks=-1, timeout_ms=9000)
                _, pause = produce.answer(connection.exchange_frame(request, correlation_id, 30), version)
                if pause:
                    break
            assert pause > 0
            throttled = [connection.is_throttled]
            connection.note_throttle(pause)
            throttled.append(connection.is_throttled)
            connection.request(metadata(), highest=12)
            throttled.append(connection.is_throttled)
            assert throttled == [False, True, False]
        finally:
            quota(leader.client, remove=True)


# -- TLS and logins ---------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(guarded_cluster: SandboxCluster) -> SandboxCluster:
    """Return a cluster that wants TLS and a login, and ends sessions after a while."""
    return guarded_cluster


def config_of(cluster: SandboxCluster, **changes: str) -> ClientConfig:
    mechanism = changes.pop("mechanism", "SCRAM-SHA-512")
    config = client_config(cluster.client_properties("kmirror", mechanism))
    return replace(config, **changes)  # type: ignore[arg-type]


def with_tls(config: ClientConfig, **changes: Any) -> ClientConfig:
    assert config.tls is not None
    return replace(config, tls=replace(config.tls, **changes, stamps=(), properties={}))


def open_at(cluster: SandboxCluster, config: ClientConfig, host: str = "127.0.0.1") -> Connection:
    return Connection.open(host, cluster.brokers[0].port, config)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_the_right_login_lets_in(secured: SandboxCluster, mechanism: str) -> None:
    for host in ("127.0.0.1", "localhost"):
        connection = open_at(secured, config_of(secured, mechanism=mechanism), host)
        assert [b.node_id for b in connection.request(metadata(), highest=12).brokers] == [1]
        assert not connection.must_be_replaced
        connection.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"password": "not-the-password"}, {"username": "nobody"}])
def test_a_wrong_login_is_refused_without_telling_the_password(
    secured: SandboxCluster, mechanism: str, wrong: dict[str, str]
) -> None:
    config = config_of(secured, mechanism=mechanism, **wrong)
    with pytest.raises(UnreachableError, match=f"refuses user {config.username}") as caught:
        open_at(secured, config)
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert str(config.password) not in f"{caught.value} {caught.value.hint} {config!r}"


def test_a_token_that_the_broker_refuses_is_fetched_again(secured: SandboxCluster) -> None:
    config = config_of(secured, mechanism="OAUTHBEARER")
    assert isinstance(config.tokens, TokenEndpoint)
    foreign = replace(config.tokens, url=config.tokens.url.replace("sandbox", "elsewhere"))  # of another issuer
    token = TOKENS.token(foreign, 10)
    with pytest.raises(UnreachableError, match="refuses the token of client kmirror from http://") as caught:
        open_at(secured, replace(config, tokens=foreign))
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert token.value not in f"{caught.value} {caught.value.hint} {config!r}"
    assert TOKENS.token(foreign, 10) != token


def test_a_mechanism_the_broker_does_not_offer_is_refused_with_those_it_does(secured: SandboxCluster) -> None:
    with pytest.raises(UnreachableError, match="does not support SASL mechanism SCRAM-SHA-1") as caught:
        open_at(secured, config_of(secured, sasl_mechanism="SCRAM-SHA-1"))
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    for offered in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert offered in str(caught.value.hint)


def test_a_broker_that_no_trusted_authority_signed_is_refused(secured: SandboxCluster, tmp_path: Path) -> None:
    write_tls_files(tmp_path)
    with pytest.raises(ConnectFailedError, match=r"TLS with .* failed: .*certificate") as caught:
        open_at(secured, with_tls(config_of(secured), ca_pem=(tmp_path / "another-root.pem").read_text()))
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED


def test_a_certificate_for_another_host_is_refused_unless_configured_otherwise(secured: SandboxCluster) -> None:
    another = "127.0.0.2"  # the same machine, but not what the certificate says
    with closing(Wire("127.0.0.1", secured.brokers[0].port, listen_on=another, opaque=True)) as wire:
        with pytest.raises(ConnectFailedError, match=r"not valid for '127\.0\.0\.2'"):
            Connection.open(another, wire.port, config_of(secured))
        unchecked = with_tls(config_of(secured), verify_hostname=False)
        Connection.open(another, wire.port, unchecked).close()


def test_no_tls_where_the_listener_wants_it(secured: SandboxCluster) -> None:
    with pytest.raises(ConnectFailedError, match="handshake") as caught:
        open_at(secured, PLAIN)
    assert "is PLAINTEXT the listener's security.protocol?" in str(caught.value.hint)


def test_tls_where_the_listener_has_none(secured: SandboxCluster, destination_cluster: SandboxCluster) -> None:
    with pytest.raises(ConnectFailedError, match=r"TLS with .* failed") as caught:
        open_at(destination_cluster, config_of(secured))
    assert "security.protocol" in str(caught.value.hint)


def test_no_login_where_the_listener_wants_one(secured: SandboxCluster) -> None:
    config = replace(config_of(secured), security_protocol="SSL", sasl_mechanism=None, username=None, password=None)
    connection = open_at(secured, config)  # whether a login is wanted shows with the first request only
    with pytest.raises(OutcomeUnknown):
        connection.request(metadata(), highest=12)


def test_a_listener_that_wants_a_certificate_takes_it_from_a_store(secured: SandboxCluster, tmp_path: Path) -> None:
    """The brokers' own listener, entered with the brokers' own PKCS12 store, and with a JKS store made of it."""
    spec, trusted = secured.spec, secured.client_properties()
    assert spec.security is not None
    password, p12, jks = spec.security.store_password, f"{secured.directory}/tls/node.p12", f"{tmp_path}/node.jks"
    target = (
        "-destkeystore",
        jks,
        "-deststoretype",
        "JKS",
        "-deststorepass",
        "another-one",
        "-destkeypass",
        "another-one",
    )
    keytool("-importkeystore", "-noprompt", "-srckeystore", p12, "-srcstorepass", password, *target)
    properties = {
        "bootstrap.servers": f"127.0.0.1:{spec.nodes[0].internal_port}",
        "security.protocol": "SSL",
        **{key: value for key, value in trusted.items() if key.startswith("ssl.truststore.")},
    }
    for store, opened_by in (p12, password), (jks, "another-one"):
        own = {"ssl.keystore.location": store, "ssl.keystore.password": opened_by}
        config = client_config({**properties, **own})
        with ClusterClient(config) as client:
            assert client.metadata([]).cluster_id == secured.cluster_id
        assert AdminClient(librdkafka(config)).list_topics(timeout=30).cluster_id == secured.cluster_id
    rotated, keep = Path(jks), Path(jks).read_bytes()
    with ClusterClient(config) as client:
        assert client.metadata([]).cluster_id == secured.cluster_id
        write_tls_files(tmp_path)
        rotated.write_bytes(pkcs12_of((tmp_path / "client-clear-key.pem").read_bytes(), "another-one"))
        client.metadata([])
        client.close()
        with pytest.raises(UnreachableError, match=r"the broker refuses our certificate"):
            client.metadata([])
        rotated.write_bytes(keep)
        assert client.metadata([]).cluster_id == secured.cluster_id
    with ClusterClient(client_config(properties)) as client, pytest.raises(UnreachableError) as caught:
        client.metadata([])
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert "the broker requires a client certificate" in caught.value.message


def test_a_session_is_replaced_before_the_broker_ends_it(secured: SandboxCluster) -> None:
    with ClusterClient(config_of(secured)) as client:
        found = client.metadata([])
        broker = found.brokers[1]
        first = client.connect(1, broker.host, broker.port)
        assert client.connect(1, broker.host, broker.port) is first
        while not first.must_be_replaced:
            first.request(metadata(), highest=12)
        second = client.connect(1, broker.host, broker.port)
        assert second is not first
        assert first.socket.fileno() < 0
        second.request(metadata(), highest=12)


def test_large_frames_pass_through_tls_both_ways(secured: SandboxCluster) -> None:
    with Leader(secured, create_topic(secured, settings={"max.message.bytes": "8000000"})) as leader:
        batch = batch_of(value=random.Random(1).randbytes(6_000_000))
        set_producer(memoryview(batch), OWN_ID, 0, 0)
        append = produce.Append(leader.partition.topic, leader.topic_id, 0, batch)
        correlation_id = leader.connection.next_correlation_id()
        request = produce.request(correlation_id, 11, "kmirror", [append], acks=-1, timeout_ms=9000)
        stream = Stream(leader.connection, 1 << 20)
        stream.send(request)
        frame = receive(stream)
        assert [(a.error_code, a.base_offset) for a in produce.answer(frame, 11)[0]] == [(0, 0)]
        leader.connection.socket.setblocking(True)
        stored = leader.fetch(0, max_bytes=8_000_000).records
        (header,) = batch_headers(stored)
        assert bytes(stored[16 : header.size_in_bytes]) == bytes(batch[16:])
