"""Tokens: how they are asked for, how long they are kept, and what each refusal becomes."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import literal_secrets
from kmirror.cluster.security.token_endpoint import TokenEndpoint, TokenFile
from kmirror.cluster.security.tokens import Token, TokenCache
from kmirror.errors import KmirrorError, Reason, UnreachableError, UsageError
from tests.support.token_endpoint import Answer, endpoint
from tests.support.waiting import wait_until
from tests.support.wire import closed_port

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule required"
URL = "https://idp.example.com/token"
PROPERTIES = {
    "bootstrap.servers": "kafka1:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": URL,
    "sasl.jaas.config": f'{MODULE} clientId="ann" clientSecret="${{env:S}}" scope="kafka";',
}
LOGIN = TokenEndpoint(URL, "ann", "hunter2")
GOOD: Answer = (200, {"access_token": "abc", "expires_in": 60})


def jwt(**claims: Any) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts), "sig"])


def tokens_of(properties: dict[str, str], **changes: str) -> Any:
    return client_config({**properties, **changes}, {"S": "hunter2"}).tokens


# -- properties -------------------------------------------------------------------------------------------------------


def test_the_options_of_kafka_3_and_the_properties_of_kafka_4_mean_the_same() -> None:
    older = tokens_of(PROPERTIES)
    newer = tokens_of(
        PROPERTIES,
        **{
            "sasl.jaas.config": f"{MODULE};",
            "sasl.oauthbearer.client.credentials.client.id": "ann",
            "sasl.oauthbearer.client.credentials.client.secret": "${env:S}",
            "sasl.oauthbearer.scope": "kafka",
        },
    )
    assert replace(older, tls=None) == replace(newer, tls=None) == replace(LOGIN, scope="kafka")
    assert "hunter2" not in f"{older} {older!r} {client_config(PROPERTIES, {'S': 'hunter2'})!r}"


def test_everything_that_kafka_s_clients_can_be_configured_with(tls: Path) -> None:
    options = f'clientId=ann clientSecret="s" extension_logicalCluster="lkc-1" ssl.truststore.location="{tls}/root.pem"'
    found = tokens_of(
        PROPERTIES,
        **{
            "sasl.jaas.config": f'{MODULE} {options} ssl.truststore.type="PEM";',
            "sasl.login.callback.handler.class": f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.header.urlencode": "true",
            "sasl.login.refresh.window.factor": "0.6",
            "sasl.login.connect.timeout.ms": "100",
            "sasl.login.read.timeout.ms": "200",
            "sasl.login.retry.backoff.ms": "300",
            "sasl.login.retry.backoff.max.ms": "400",
        },
    )
    expected = TokenEndpoint(URL, "ann", "s", "", True, (("logicalCluster", "lkc-1"),), 0.6, 100, 200, 300, 400)
    assert replace(found, tls=None) == expected
    assert found.tls.ca_pem == (tls / "root.pem").read_text()
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_token_may_be_in_a_file() -> None:
    for url in ("file:///var/run/token", "file:/var/run/token"):
        found = tokens_of(PROPERTIES, **{"sasl.oauthbearer.token.endpoint.url": url})
        assert found == TokenFile("/var/run/token")


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"sasl.jaas.config": ""}, "sasl.jaas.config is missing, and OAUTHBEARER needs its login module", "set "),
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "sasl.oauthbearer.token.endpoint.url is missing", "https://…"),
        (
            {
                "sasl.oauthbearer.token.endpoint.url": "",
                "sasl.jaas.config": f"{MODULE} unsecuredLoginStringClaim_sub=a;",
            },
            "sasl.jaas.config asks for an unsigned token, which is not supported",
            "https://…",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": "idp:80"}, "sasl.oauthbearer.token.endpoint.url is not a URL", "http"),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://[idp/t"},
            "sasl.oauthbearer.token.endpoint.url is not a URL",
            "http",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": "https:///t"}, "sasl.oauthbearer.token.endpoint.url is not a", "http"),
        ({"sasl.jaas.config": f"{MODULE} clientId=ann;"}, "the client secret for sasl.oauth", "clientSecret="),
        ({"sasl.jaas.config": f"{MODULE} clientSecret=a;"}, "the client id for sasl.oauth", "clientId="),
        ({"sasl.login.refresh.window.factor": "2"}, "sasl.login.refresh.window.factor=2 is not a number", "correct"),
        (
            {"sasl.login.callback.handler.class": "com.example.Handler"},
            "sasl.login.callback.handler.class names a Java class, which kmirror cannot load: com.example.Handler",
            "remove sasl.login.callback.handler.class",
        ),
        (
            {"sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.JwtBearerJwtRetriever"},
            "sasl.oauthbearer.jwt.retriever.class names a Java class, which kmirror cannot load: ",
            "remove",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        tokens_of(PROPERTIES, **changes)
    assert refusal.value.message.startswith(message)
    assert hint in str(refusal.value.hint)


def test_a_secret_in_clear_is_one_wherever_it_is() -> None:
    assert literal_secrets(PROPERTIES) == []
    for changes in (
        {"sasl.jaas.config": f"{MODULE} clientSecret=hunter2;"},
        {"sasl.oauthbearer.client.credentials.client.secret": "hunter2"},
    ):
        assert literal_secrets({**PROPERTIES, **changes}) == list(changes)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_the_request_is_that_of_rfc_6749() -> None:
    with endpoint(GOOD) as served:
        before = time.time()
        login = replace(LOGIN, url=served.url, scope="a b", client_id="a:b", client_secret="p w")
        token = login.fetch(5)
        replace(login, encodes_credentials=True, scope="").fetch(5)
    assert token.value == "abc"
    assert before + 60 <= token.expires_at <= time.time() + 60
    (headers, body), (encoded, without_scope) = served.asked
    assert (body, without_scope) == ("grant_type=client_credentials&scope=a+b", "grant_type=client_credentials")
    given = [base64.b64decode(one["Authorization"].removeprefix("Basic ")) for one in (headers, encoded)]
    assert given == [b"a:b:p w", b"a%3Ab:p+w"]
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_without_a_lifetime_the_token_itself_says_when_it_expires() -> None:
    with endpoint((200, {"id_token": jwt(exp=12345)}), (200, {"access_token": "opaque"})) as served:
        assert replace(LOGIN, url=served.url).fetch(5).expires_at == 12345
        with pytest.raises(UnreachableError, match="has no expiry time"):
            replace(LOGIN, url=served.url).fetch(5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (401, {"error": "invalid_client", "error_description": "no\nhunter2 here"}),
            "HTTP 401: invalid_client: no *** h",
        ),
        ((400, "<html>hunter2</html>"), "HTTP 400"),
        ((302, ""), "HTTP 302"),
        ((200, {"token": "abc"}), "the answer has no access_token"),
        ((200, ["abc"]), "the answer has no access_token"),
        ((200, "hunter2"), "the answer has no access_token"),
    ],
)
def test_a_refusal_is_final_and_shows_no_secret(answer: Answer, message: str) -> None:
    with endpoint(answer) as served, pytest.raises(UnreachableError) as caught:
        replace(LOGIN, url=served.url).fetch(5)
    assert caught.value.message.startswith(f"no token for client ann from {served.url}: {message}")
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert len(served.asked) == 1


def test_trouble_that_may_pass_is_waited_out() -> None:
    with endpoint((503, "busy"), (429, ""), GOOD) as served:
        assert replace(LOGIN, url=served.url, retry_backoff_ms=1).fetch(5).value == "abc"
        assert len(served.asked) == 3


def test_an_unreachable_token_server_is_no_refusal() -> None:
    url = f"http://127.0.0.1:{closed_port()}/token"
    with pytest.raises(
        UnreachableError, match=r"cannot get a token for client ann from .*: Connection refused"
    ) as caught:
        replace(LOGIN, url=url, retry_backoff_ms=1).fetch(0.05)
    assert caught.value.reason is None


def test_the_endpoint_s_certificate_is_checked(tls: Path) -> None:
    jaas = f'{MODULE} clientId=ann clientSecret=s ssl.truststore.type=PEM ssl.truststore.location="{tls}/%s.pem";'
    with endpoint(GOOD, certificate=tls / "server.pem") as served:
        url = {"sasl.oauthbearer.token.endpoint.url": served.url}
        assert tokens_of(PROPERTIES, **url, **{"sasl.jaas.config": jaas % "root"}).fetch(5).value == "abc"
        with pytest.raises(UnreachableError, match="TLS with https://") as caught:
            tokens_of(PROPERTIES, **url, **{"sasl.jaas.config": jaas % "another-root"}).fetch(5)
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert "ssl.truststore.location" in str(caught.value.hint)


def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path / "token"))
    with pytest.raises(UnreachableError, match="No such file") as caught:
        file.fetch(1)
    assert caught.value.reason is Reason.SECRET_UNRESOLVED
    later = int(time.time()) + 60
    (tmp_path / "token").write_text(jwt(exp=later) + "\n")
    assert file.fetch(1) == Token(jwt(exp=later), later)
    for text, message in ((jwt(exp=1), "has expired"), ("opaque", "has no expiry time"), (jwt(exp=True), "no expiry")):
        (tmp_path / "token").write_text(text)
        with pytest.raises(UnreachableError, match=message):
            file.fetch(1)


# -- keeping ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Source:
    """Tokens of 100 seconds by a clock that only moves when it is set, or an error instead."""

    now: float = 1000.0
    fetched: int = 0
    timeouts: list[float] = field(default_factory=list)
    error: KmirrorError | None = None
    extensions: tuple[tuple[str, str], ...] = (("k", "v"),)
    refresh_part: float = 0.8
    before: Callable[[], None] = lambda: None

    def fetch(self, timeout: float) -> Token:
        self.before()
        self.fetched += 1
        self.timeouts.append(timeout)
        if self.error is not None:
            raise self.error
        return Token(f"token {self.fetched}", self.now + 100)


def cache_of(source: Source) -> TokenCache:
    return TokenCache(lambda: source.now)


def test_a_token_is_used_until_most_of_its_life_is_over() -> None:
    source = Source()
    cache = cache_of(source)
    found = []
    for source.now in (1000, 1079, 1080, 1159, 1161):
        found.append(cache.token(source, 5).value)
    assert found == ["token 1", "token 1", "token 2", "token 2", "token 3"]


def test_an_old_token_serves_while_no_new_one_is_to_be_had() -> None:
    source = Source()
    cache = cache_of(source)
    first = cache.token(source, 5)
    source.error = UnreachableError("down")
    found = []
    for source.now in (1085, 1090, 1096, 1099):  # after a failure there is a pause of 10 s
        found.append((cache.token(source, 5), source.fetched))
    assert found == [(first, 2), (first, 2), (first, 3), (first, 3)]
    source.now = 1100
    with pytest.raises(UnreachableError, match="down"):
        cache.token(source, 5)
    assert source.timeouts == [5, 2.0, 2.0, 5]
    source.error = None
    assert cache.token(source, 5).value == "token 5"


def test_a_refused_token_is_not_used_again() -> None:
    source = Source()
    cache = cache_of(source)
    first = cache.token(source, 5)
    cache.forget(source, first)
    second = cache.token(source, 5)
    cache.forget(source, first)
    assert (second.value, cache.token(source, 5)) == ("token 2", second)


@pytest.mark.parametrize("error", [None, UnreachableError("down")])
def test_concurrent_requests_for_a_token_fetch_it_once(error: KmirrorError | None) -> None:
    source = Source(error=error)
    cache = cache_of(source)
    found: list[str] = []

    def ask() -> None:
        try:
            found.append(cache.token(source, 5).value)
        except UnreachableError as raised:
            found.append(raised.message)

    threads = [threading.Thread(target=ask) for _ in range(3)]

    def wait_for_the_others() -> None:
        wait_until(lambda: sum(has_begun(thread) for thread in threads) == 3)

    source.before = wait_for_the_others
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["token 1" if error is None else "down"] * 3
    assert source.fetched == 1


def has_begun(thread: threading.Thread) -> bool:
    """Return whether a thread has read how often the token was requested."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if "attempts" in frame.f_locals:
            return True
        frame = frame.f_back
    return False
