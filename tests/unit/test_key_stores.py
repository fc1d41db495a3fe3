"""JKS and PKCS12 stores, as keytool writes them, become what a TLS connection needs; others are refused plainly."""

from __future__ import annotations

import os
import pickle
import shutil
import ssl
from pathlib import Path

import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kmirror.cluster.connect_hints import tls_refusal
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.errors import UsageError
from kmirror.state.store import StateStore
from tests.support.key_stores import OWN_KEY_PASSWORD, STORE_PASSWORD, write_stores
from tests.support.librdkafka import librdkafka
from tests.support.tls_handshake import handshake

SSL = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
KEYS = ("client.jks", "client.p12", "java8.p12", "own.jks")


@pytest.fixture(scope="module")
def stores(tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of stores."""
    folder = tmp_path_factory.mktemp("stores")
    write_stores(tls, folder)
    for name in ("root.pem", "server.pem", "expired-server.pem", "client-clear-key.pem", "expired-client.pem"):
        shutil.copy(tls / name, folder)
    (folder / "two.jceks").write_bytes(bytes.fromhex("cececece") + bytes(20))
    (folder / "rubbish.jks").write_bytes(b"no store")
    (folder / "half.jks").write_bytes((folder / "client.jks").read_bytes()[:400])
    (folder / "half.p12").write_bytes((folder / "client.p12").read_bytes()[:400])
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder_of_stores(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stores)


def trust(name: str, **more: str) -> dict[str, str]:
    return {"ssl.truststore.location": name, "ssl.truststore.password": STORE_PASSWORD, **more}


def own(name: str, **more: str) -> dict[str, str]:
    own_password = {"ssl.key.password": OWN_KEY_PASSWORD} if name == "own.jks" else {}
    return {"ssl.keystore.location": name, "ssl.keystore.password": STORE_PASSWORD, **own_password, **more}


def configured(*properties: dict[str, str]) -> ClientConfig:
    merged = dict(SSL)
    for each in properties:
        merged |= each
    return client_config(merged, {})


@pytest.mark.parametrize("name", KEYS)
def test_a_client_shows_its_certificate_and_the_chain_above_it(name: str) -> None:
    config = configured(trust("trust.p12"), own(name))
    assert handshake(config, client_auth=True) == "client"
    expected = load_pem_private_key(Path("client-clear-key.pem").read_bytes(), None)
    assert config.tls is not None
    assert load_pem_private_key(str(config.tls.key_pem).encode(), None).public_key() == expected.public_key()
    assert isinstance(Producer(librdkafka(config, log_level=0)), Producer)
    assert not [secret for secret in (STORE_PASSWORD, OWN_KEY_PASSWORD, "PRIVATE") if secret in repr(config)]


@pytest.mark.parametrize(
    "properties",
    [
        trust("trust.jks"),
        trust("trust.p12"),
        {"ssl.truststore.location": "trust.jks"},  # without a password JKS is not proved whole, as in Java
        {**trust("trust.jks"), "ssl.truststore.type": "PKCS12"},
        {**trust("trust.p12"), "ssl.truststore.type": "jks"},
    ],
)
def test_a_broker_is_trusted_by_its_root_whatever_the_type_says(properties: dict[str, str]) -> None:
    assert handshake(configured(properties)) is None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(configured({"ssl.truststore.location": "client.jks"}))


def wrong(side: str) -> dict[str, str]:
    return {f"ssl.{side}.password": "hunter2"}


@pytest.mark.parametrize(
    ("properties", "message", "hint"),
    [
        (
            trust("trust.jks", **wrong("truststore")),
            "ssl.truststore.password does not open",
            "-list",
        ),
        (
            trust("trust.p12", **wrong("truststore")),
            "ssl.truststore.password does not open",
            "-list",
        ),
        (own("client.jks", **wrong("keystore")), "ssl.keystore.password does not open", "-list"),
        (own("client.p12", **wrong("keystore")), "ssl.keystore.password does not open", "-list"),
        (own("own.jks", **{"ssl.key.password": ""}), "ssl.keystore.password does not open the key 'client'", "differ"),
        (
            own("own.jks", **wrong("key")),
            "ssl.key.password does not open the key 'client'",
            "differ",
        ),
        ({"ssl.truststore.location": "trust.p12"}, "ssl.truststore.password is missing", "set ssl.truststore.password"),
        ({"ssl.keystore.location": "client.jks"}, "ssl.keystore.password is missing", "set ssl.keystore.password"),
        (own("trust.jks"), "trust.jks has no private key", "PrivateKeyEntry"),
        (own("trust.p12"), "trust.p12 has no private key", "PrivateKeyEntry"),
        (own("two.jks"), "it has 2 private keys", "-srcalias NAME"),
        (own("two.p12"), "it has 2 private keys", "-srcalias NAME"),
        (own("two.jceks"), "is a JCEKS store, which is not supported", "-deststoretype PKCS12"),
        (own("rubbish.jks"), "is neither a JKS nor a PKCS12 store", "keytool -list"),
        (own("half.jks"), "cannot be read: it ends in the middle of an entry", "keytool -list"),
        (own("half.p12"), "ssl.keystore.password does not open", "keytool -list"),
        (own("gone.jks"), "cannot read gone.jks: No such file or directory", "name a file that this user can read"),
        (trust("root.pem"), "root.pem is PEM, but ssl.truststore.type is JKS", "set ssl.truststore.type=PEM"),
        (trust("trust.p12", **{"ssl.truststore.type": "PEM"}), "is a PKCS12 store, not PEM", "type=PKCS12"),
        (trust("trust.jks", **{"ssl.truststore.type": "BCFKS"}), "this ssl.truststore.type is not supported", "JKS"),
    ],
)
def test_stores_that_are_refused(properties: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        configured(properties)
    assert message in refusal.value.message
    assert hint in str(refusal.value.hint)
    assert not [s for s in (STORE_PASSWORD, OWN_KEY_PASSWORD, "hunter2") if s in f"{refusal.value.message}{hint}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["client.jks", "trust.jks"])
def test_bytes_of_a_stranger_end_in_a_refusal(name: str, tmp_path: Path) -> None:
    """Whatever byte is another, and wherever the file ends: without a password only the form protects us."""
    whole, damaged = Path(name).read_bytes(), tmp_path / "damaged.jks"
    for at in (*range(4, min(len(whole), 200)), len(whole) - 1):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(UsageError):
            configured(own(str(damaged)))
        damaged.write_bytes(whole[:at])
        with pytest.raises(UsageError):
            configured(trust(str(damaged)))


def test_the_key_is_nowhere_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda _, path, password: written.append(os.readlink(path)))
    configured(trust("trust.p12"), own("client.p12")).ssl_context()
    assert written == ["/memfd:kmirror-key (deleted)"]


def test_a_store_that_is_replaced_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    """The password may change with it; what cannot be used, because it is half written, changes nothing."""
    store, password = tmp_path / "own", tmp_path / "password"

    def write(file: Path, content: bytes) -> None:
        (new := tmp_path / "new").write_bytes(content)
        new.replace(file)

    write(store, Path("client.p12").read_bytes())
    write(password, STORE_PASSWORD.encode())
    named = {"ssl.keystore.location": str(store), "ssl.keystore.password": f"${{dir:{tmp_path}:password}}"}
    config = pickle.loads(pickle.dumps(configured(trust("trust.p12"), named)))
    state = StateStore(config)
    before = state.login.tls
    assert (handshake(config, client_auth=True), state.login.tls) == ("client", before)

    write(store, Path("server.p12").read_bytes())
    assert (handshake(config, client_auth=True), state.login.tls) == ("client", before), (
        "the password is still the old one"
    )
    write(password, b"another-password")
    assert handshake(config, client_auth=True) == "broker"
    assert config.tls is not None
    assert state.login.tls == config.tls.current() != config.tls
    for content in (b"", Path("half.p12").read_bytes()):
        write(store, content)
        assert (handshake(config, client_auth=True), state.login.tls) == ("client", before)
    store.unlink()
    assert handshake(config, client_auth=True) == "client"
    state.close()


def test_who_refuses_whom_and_why() -> None:
    trusting, shown = trust("trust.p12"), {"ssl.keystore.type": "PEM", "ssl.keystore.location": "expired-client.pem"}
    config, expired = configured(trusting), configured(trusting, shown)

    def refusal(config: ClientConfig, **handshaken: str | bool) -> str:
        with pytest.raises(ssl.SSLError) as caught:
            handshake(config, **handshaken)  # type: ignore[arg-type]
        return ": ".join(tls_refusal(caught.value, config))

    assert "the broker's certificate: certificate has expired: renew it" in refusal(config, server="expired-server.pem")
    assert "not valid for 'elsewhere'" in refusal(config, server_hostname="elsewhere")
    assert "advertised.listeners" in refusal(config, server_hostname="127.0.0.2")
    untrusting = configured({"ssl.truststore.location": "client.jks"})
    assert "must contain the CA that signed the broker's certificate" in refusal(untrusting)
    alert = ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_UNKNOWN]")
    alert.reason = "SSLV3_ALERT_CERTIFICATE_UNKNOWN"
    assert "refuses our certificate, which expired on " in ": ".join(tls_refusal(alert, expired))
    assert "requires a client certificate (SSLV3_ALERT_CERTIFICATE_UNKNOWN): set ssl.keystore" in ": ".join(
        tls_refusal(alert, config)
    )
