"""Brokers and token endpoints that are not what they should be: what they get from a login, and what they can cause."""

from __future__ import annotations

import base64
import socket
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import literal_secrets
from kmirror.cluster.security.sasl import authenticate
from kmirror.cluster.security.token_endpoint import TokenEndpoint
from kmirror.errors import KmirrorError, Reason, UnreachableError, UsageError
from tests.attacks.conftest import SECRET
from tests.support.token_endpoint import Answer, endpoint

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{}";'


class FalseBroker:
    """A broker that asks for a proof with so many iterations; it records what it is sent."""

    def __init__(self, iterations: str) -> None:
        self._iterations = iterations
        self.sent: list[bytes] = []

    def exchange(self, request: Any, version: int, timeout: float) -> Any:
        if hasattr(request, "mechanism"):
            return SimpleNamespace(error_code=0, mechanisms=())
        self.sent.append(bytes(request.auth_bytes))
        nonce = self.sent[0].decode().rpartition("r=")[2]
        salt = base64.b64encode(b"salt").decode()
        answer = f"r={nonce}x,s={salt},i={self._iterations}".encode()
        return SimpleNamespace(error_code=0, error_message=None, session_lifetime_ms=0, auth_bytes=answer)


@pytest.mark.parametrize("iterations", ["1", "4095", "0", "-5", "+1", "9" * 5000, "x", "8192,i=1"])
def test_a_false_broker_gets_no_proof_from_which_a_password_is_easily_guessed(iterations: str) -> None:
    broker = FalseBroker(iterations)
    properties = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": SCRAM.format(SECRET),
    }
    with pytest.raises(UnreachableError) as refused:
        authenticate(broker.exchange, client_config(properties), "a:1")
    assert refused.value.reason is Reason.AUTHENTICATION_FAILED
    assert len(broker.sent) == 1, "only the name was sent"
    # and a broker that asks for enough gets its proof
    honest = FalseBroker("4096")
    with pytest.raises(UnreachableError):
        authenticate(honest.exchange, client_config(properties), "a:1")
    assert len(honest.sent) == 2


ANSWERS: dict[str, Answer] = {
    "nested deep": (200, "[" * 200_000),
    "nested deep, in an object": (200, '{"access_token":' * 100_000),
    "no number": (200, '{"access_token": "a", "expires_in": NaN}'),
    "for ever": (200, '{"access_token": "a", "expires_in": 1e999}'),
    "a number of 400 digits": (200, f'{{"access_token": "a", "expires_in": {"9" * 400}}}'),
    "the past": (200, '{"access_token": "a", "expires_in": -1}'),
    "a yes": (200, '{"access_token": "a", "expires_in": true}'),
    "words of SASL": (200, '{"access_token": "a\\u0001auth=Bearer b", "expires_in": 60}'),
    "two lines": (200, '{"access_token": "a\\nb", "expires_in": 60}'),
    "an error nested deep": (400, "[" * 200_000),
    "an error that is a list": (400, '{"error": ' + "[" * 900 + "]" * 900 + "}"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_hostile_answer_of_a_token_endpoint_is_no_login_and_no_crash(answer: str) -> None:
    with endpoint(ANSWERS[answer]) as served, pytest.raises(UnreachableError) as refused:
        TokenEndpoint(served.url, "ann", SECRET).fetch(5)
    assert refused.value.reason is Reason.AUTHENTICATION_FAILED
    assert len(refused.value.message) < 500


def test_an_endpoint_that_repeats_what_it_was_sent_does_not_get_it_into_our_messages() -> None:
    secret = "a secret+with/signs"
    sent = base64.b64encode(f"ann:{secret}".encode()).decode()
    for repeated in (secret, sent, "a+secret%2Bwith%2Fsigns", "a%20secret%2Bwith/signs"):
        answer = (401, {"error": "no", "error_description": f"bad {repeated}."})
        with endpoint(answer) as served, pytest.raises(UnreachableError) as refused:
            TokenEndpoint(served.url, "ann", secret).fetch(5)
        assert refused.value.message.endswith("HTTP 401: no: bad ***.")


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["body", "error", "header", "interim answers"],
)
def test_an_endpoint_that_never_ends_its_answer_is_not_waited_for(start: bytes, part: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        over, was_waited_for = threading.Event(), threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with closing(connection):
                connection.recv(1 << 16)
                connection.sendall(start)
                for _ in range(200):
                    if over.wait(0.05):
                        return
                    try:
                        connection.sendall(part)
                    except OSError:
                        return
                was_waited_for.set()

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/token"
            with pytest.raises(UnreachableError, match="cannot get a token for client ann"):
                TokenEndpoint(url, "ann", SECRET).fetch(0.5)
            assert not was_waited_for.is_set()
        finally:
            over.set()
            thread.join()


BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
URL = "sasl.oauthbearer.token.endpoint.url"
OAUTH = {
    "bootstrap.servers": "a:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": f'{BEARER} clientId="c" clientSecret="s";',
}
LOGIN = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
FAIL: dict[str, dict[str, str]] = {
    "a number": {"bootstrap.servers": "a:1", "request.timeout.ms": "${env:OWN}"},
    "a word": {"bootstrap.servers": "a:1", "security.protocol": "${env:OWN}"},
    "an address": {"bootstrap.servers": "u:${env:OWN}@host"},
    "a mechanism": {**LOGIN, "sasl.mechanism": "${env:OWN}"},
    "a Java class": {**LOGIN, "sasl.login.callback.handler.class": "${env:OWN}"},
    "the check of names": {"bootstrap.servers": "a:1", "ssl.endpoint.identification.algorithm": "${env:OWN}"},
    "the versions of TLS": {"bootstrap.servers": "a:1", "ssl.enabled.protocols": "${env:OWN}"},
    "cipher suites": {"bootstrap.servers": "a:1", "ssl.cipher.suites": "${env:OWN}"},
    "a part of a lifetime": {**OAUTH, URL: "https://idp/t", "sasl.login.refresh.window.factor": "${env:OWN}"},
    "a login in a URL": {**OAUTH, URL: "https://u:${env:OWN}@idp/t"},
    "a line": {**LOGIN, "sasl.jaas.config": "${env:OWN}"},
    "a line that has a module": {**LOGIN, "sasl.jaas.config": "${env:LINE}"},
    "a store": {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.truststore.location": "/nowhere/${env:OWN}",
    },
    "a type of store": {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.truststore.type": "${env:OWN}",
        "ssl.truststore.location": "/nowhere",
    },
}


@pytest.mark.parametrize("where", FAIL)
def test_the_secret_behind_a_reference_is_in_no_error(where: str) -> None:
    with pytest.raises(KmirrorError) as refused:
        client_config(FAIL[where], {"OWN": SECRET, "LINE": f"{SECRET} required;"})
    assert SECRET.lower() not in f"{refused.value.message} {refused.value.hint} {refused.value!r}".lower()


def test_a_url_with_a_secret_is_neither_stored_nor_shown() -> None:
    for url in (
        f"https://u:{SECRET}@idp/t",
        f"https://idp/t?client_secret={SECRET}",
        f"https://idp/t?a=b&token={SECRET}",
    ):
        assert literal_secrets({**OAUTH, URL: url, "sasl.jaas.config": ""}) == [URL]
    assert literal_secrets({URL: "https://idp/t?tenant=1"}) == []
    with pytest.raises(UsageError, match=r"url has a login$"):
        client_config({**OAUTH, URL: f"https://u:{SECRET}@idp/t"})
    shown = str(client_config({**OAUTH, URL: f"https://idp/t?key={SECRET}"}).tokens)
    assert shown == "client c from https://idp/t"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ssl.enabled.protocols": "TLSv1.3"}, "kmirror always offers TLSv1.2 and TLSv1.3"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2,TLSv1.3"}, "kmirror always offers"),
        ({"ssl.protocol": "TLSv1.2"}, "ssl.protocol=TLSv1.2 would have no effect in kmirror"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "would have no effect"),
        ({"ssl.provider": "BCFIPS"}, "would have no effect"),
        ({"ssl.keymanager.algorithm": "X"}, "would have no effect"),
        ({"ssl.trustmanager.algorithm": "X"}, "would have no effect"),
        ({"ssl.secure.random.implementation": "SHA1PRNG"}, "would have no effect"),
        ({"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}, "would have no effect"),
        ({"sasl.oauthbearer.assertion.private.key.file": "/key"}, "signed assertions are not supported"),
    ],
)
def test_what_would_be_relied_on_without_effect_is_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        client_config({"bootstrap.servers": "a:1", **properties})
    assert "remove it" in str(refused.value.hint)


@pytest.mark.parametrize(
    "properties",
    [
        {"ssl.enabled.protocols": "TLSv1.2, TLSv1.3", "ssl.protocol": "TLSv1.3"},
        {"ssl.cipher.suites": "", "ssl.provider": "", "ssl.enabled.protocols": ""},
        {"ssl.keymanager.algorithm": "SunX509", "ssl.trustmanager.algorithm": "PKIX"},
        {"client.dns.lookup": "use_all_dns_ips"},
    ],
)
def test_what_says_what_kmirror_does_anyway_is_accepted(properties: dict[str, str]) -> None:
    assert client_config({"bootstrap.servers": "a:1", **properties})
