"""Java client properties become one configuration: for connections and for TLS."""

from __future__ import annotations

import pickle
import shutil
import ssl
from pathlib import Path

import pytest

from kmirror.cluster.connect_hints import tls_refusal
from kmirror.cluster.connection import ConnectFailedError, Connection
from kmirror.cluster.security.client_config import ClientConfig, client_config, scram_escaped
from kmirror.cluster.security.jaas import parse_jaas
from kmirror.cluster.security.properties import parse_properties
from kmirror.cluster.security.property_reader import parse_bootstrap_servers
from kmirror.cluster.security.tls_material import TlsMaterial
from kmirror.errors import Reason, UnreachableError, UsageError
from tests.support.listener import listening
from tests.support.tls import KEY_PASSWORD
from tests.support.tls_handshake import handshake

ADDRESS = {"bootstrap.servers": "kafka1:9092"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "root.pem"}
CLIENT = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "client.pem",
    "ssl.key.password": KEY_PASSWORD,
}
SSL = {**ADDRESS, "security.protocol": "SSL"}


@pytest.fixture(autouse=True)
def _in_the_folder_of_keys_and_certificates(tls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tls)


def scram(jaas: str, **more: str) -> dict[str, str]:
    return {
        **ADDRESS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        **more,
    }


def test_nothing_but_an_address() -> None:
    assert client_config(ADDRESS, {}) == ClientConfig(
        bootstrap_servers=(("kafka1", 9092),),
        client_id="kmirror",
        security_protocol="PLAINTEXT",
        request_timeout_ms=30_000,
        connect_timeout_ms=10_000,
    )


def test_everything_at_once(tls: Path) -> None:
    text = rf"""
        bootstrap.servers = kafka1:9093, \
                            kafka2:9093
        client.id = me
        security.protocol = sasl_ssl
        sasl.mechanism = SCRAM-SHA-256
        sasl.jaas.config = {SCRAM} required \
            username="${{env:KAFKA_USER}}" \
            password="${{env:KAFKA_PASSWORD}}";
        ssl.truststore.type = pem
        ssl.truststore.location = {tls}/root.pem
        ssl.endpoint.identification.algorithm =
        request.timeout.ms = 5000
        socket.connection.setup.timeout.ms = 2000
        send.buffer.bytes = -1
        receive.buffer.bytes = 1048576
        group.id = ignored
        auto.offset.reset = earliest
        schema.registry.url = http://somebody.else
    """
    config = client_config(parse_properties(text), {"KAFKA_USER": "ann", "KAFKA_PASSWORD": 'a "quoted" \\; secret'})
    assert config == ClientConfig(
        bootstrap_servers=(("kafka1", 9093), ("kafka2", 9093)),
        client_id="me",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        username="ann",
        password='a "quoted" \\; secret',
        tls=TlsMaterial(ca_pem=(tls / "root.pem").read_text(), verify_hostname=False),
        request_timeout_ms=5000,
        connect_timeout_ms=2000,
        receive_buffer_bytes=1_048_576,
    )


def test_it_pickles_and_keeps_its_secrets_to_itself() -> None:
    properties = scram(f'{SCRAM} required username="ann" password="hunter2";', **TRUST, **CLIENT)
    config = client_config(properties | {"security.protocol": "SASL_SSL"}, {})
    assert config.password == "hunter2"
    assert config.tls is not None
    assert config.tls.key_password == KEY_PASSWORD
    assert pickle.loads(pickle.dumps(config)) == config
    for secret in ("hunter2", KEY_PASSWORD, "PRIVATE KEY", "BEGIN"):
        assert secret not in repr(config)


def test_credentials_are_left_alone_where_the_protocol_has_no_login() -> None:
    properties = scram("not even JAAS") | {"security.protocol": "PLAINTEXT", "ssl.truststore.location": "/nowhere"}
    config = client_config(properties, {})
    assert (config.sasl_mechanism, config.username, config.password, config.tls) == (None, None, None, None)
    assert config.ssl_context() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka1:9092", (("kafka1", 9092),)),
        (" kafka1:9092 , kafka2:9093 ,", (("kafka1", 9092), ("kafka2", 9093))),
        ("127.0.0.1:1", (("127.0.0.1", 1),)),
        ("[::1]:9092", (("::1", 9092),)),
        ("[fe80::1%eth0]:65535", (("fe80::1%eth0", 65535),)),
        ("SASL_SSL://kafka1:9092", (("kafka1", 9092),)),
        (":9094", (("localhost", 9094),)),
    ],
)
def test_bootstrap_servers(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert parse_bootstrap_servers(text) == expected


@pytest.mark.parametrize(
    "address",
    ["kafka1", "kafka1:", ":", "kafka1:port", "kafka1:0", "kafka1:65536", "::1:9092", "[::1]", "a b:1", "a\0b:1"],
)
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bootstrap_servers(f"kafka1:9092,{address}")
    assert refusal.value.message == f"bootstrap.servers: {address!r} is not HOST:PORT"


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_no_address_at_all(text: str) -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers is missing or empty"):
        parse_bootstrap_servers(text)


JAAS_CASES = {
    "double quotes": (f'{SCRAM} required username="ann" password="secret";', "ann", "secret"),
    "single quotes": (f"{SCRAM} required username='ann' password='sec\"ret';", "ann", 'sec"ret'),
    "no quotes": (f"{SCRAM} required username=ann password=12345;", "ann", "12345"),
    "escaped quotes": (f'{SCRAM} required username="a\\"nn" password="s\\\\e\\"t";', 'a"nn', 's\\e"t'),
    "java escapes": (f'{SCRAM} required username="ann" password="\\101\\tb\\q";', "ann", "A\tbq"),
    "spaces": (f' {SCRAM}  REQUIRED\tusername = "a n n"  password="a;b = c"  ; ', "a n n", "a;b = c"),
    "comments": (f'/* who */ {SCRAM} required username="ann" // x\n password="//s";', "ann", "//s"),
    "other options": (f'{SCRAM} required serviceName="k" username="ann" password="s" x=y;', "ann", "s"),
    "a reference": (f'{SCRAM} required username="ann" password="${{env:P}}";', "ann", 'from "env";'),
    "a reference without quotes": (f"{SCRAM} required username=ann password=${{env:P}};", "ann", 'from "env";'),
    "references inside": (f'{SCRAM} required username="ann" password="<${{env:P}}>";', "ann", '<from "env";>'),
    "the whole line a reference": ("${env:JAAS}", "bob", "builder"),
}


@pytest.mark.parametrize(("line", "username", "password"), JAAS_CASES.values(), ids=JAAS_CASES.keys())
def test_jaas(line: str, username: str, password: str) -> None:
    environ = {"P": 'from "env";', "JAAS": f'{SCRAM} required username="bob" password="builder";'}
    config = client_config(scram(line), environ)
    assert (config.username, config.password) == (username, password)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f'{SCRAM} required username="ann" password="hunter2"', "does not end with a semicolon"),
        (f'{SCRAM} required username="ann" password="hunter2', "cannot be read at character "),
        (f"{SCRAM} required username=ann password=hunter2!;", "cannot be read at character "),
        (f"{SCRAM} required username=ann password=hunter2 hunter2;", f"option 3 of {SCRAM} is not name=value"),
        (f'{SCRAM} username="ann" password="hunter2";', "does not begin with a login module and a control flag"),
        ('username="ann" password="hunter2";', "does not begin with a login module and a control flag"),
        (f'{SCRAM} required password="hunter2";', "lacks the username"),
        (f'{SCRAM} required username="ann";', "lacks the password"),
        (f'{SCRAM} required username="ann" password="";', "lacks the password"),
        (f'{PLAIN} required username="ann" password="hunter2";', "does not fit sasl.mechanism=SCRAM-SHA-512"),
        (f'{SCRAM} required username="a" password="hunter2";' * 2, "has 2 login modules"),
        (" ", "is missing, and SCRAM-SHA-512 needs a user name and a password"),
        ("${env:EMPTY}", "what ${env:EMPTY} refers to is not a login module's line"),
        ("${env:WORDS}", "what ${env:WORDS} refers to is not a login module's line"),
        ("${env:OTHER}", "${env:OTHER} does not fit sasl.mechanism=SCRAM-SHA-512"),
    ],
)
def test_jaas_lines_that_are_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        client_config(scram(line), {"EMPTY": "", "WORDS": "hunter2 required a;", "OTHER": "hunter2 required;"})
    assert message in refusal.value.message
    assert refusal.value.message.startswith("sasl.jaas.config")
    assert "hunter2" not in f"{refusal.value.message}{refusal.value.hint}"


def test_jaas_does_not_show_its_options() -> None:
    assert "hunter2" not in repr(parse_jaas(f"{SCRAM} required password=hunter2;"))


def test_a_missing_secret_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"sasl\.jaas\.config: the reference \$\{env:P\} ") as refusal:
        client_config(scram(f'{SCRAM} required username="ann" password="${{env:P}}";'), {})
    assert refusal.value.reason is Reason.SECRET_UNRESOLVED


def test_secrets_that_are_not_used_are_not_asked_for() -> None:
    assert client_config({**ADDRESS, "ssl.key.password": "${env:MISSING}"}, {}).tls is None


@pytest.mark.parametrize(
    ("username", "escaped"), [("ann", "ann"), ("a=b,c", "a=3Db=2Cc"), ("=2C", "=3D2C"), ("ünal", "ünal")]
)
def test_scram_user_names(username: str, escaped: str) -> None:
    assert scram_escaped(username) == escaped


@pytest.mark.parametrize(
    ("properties", "message", "hint"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol=TLS is not known",
            "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"security.protocol": "SASL_SSL"},
            "sasl.jaas.config is missing, and GSSAPI needs its login module",
            "set sasl.jaas.config",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "EXTERNAL"},
            "sasl.mechanism=EXTERNAL is not supported",
            "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            {"ssl.engine.factory.class": "com.example.Engine"},
            "ssl.engine.factory.class names a Java class, which kmirror cannot load",
            "remove ssl.engine.factory.class",
        ),
        ({"request.timeout.ms": "0"}, "request.timeout.ms=0 is not a number from 1 to ", "correct"),
        ({"request.timeout.ms": "5s"}, "request.timeout.ms=5s is not a number from 1 to ", "correct"),
        ({"receive.buffer.bytes": "-2"}, "receive.buffer.bytes=-2 is not a number from -1 to ", "correct"),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            "ssl.endpoint.identification.algorithm=none is not known",
            "to leave host names unchecked",
        ),
        ({"sasl.jaas.conf": "hunter2"}, "unknown client property sasl.jaas.conf", "did you mean sasl.jaas.config?"),
        ({"security_protocol": "SSL"}, "unknown client property security_protocol", "did you mean security.protocol?"),
        ({"sasl.username": "ann"}, "unknown client property sasl.username", "did you mean sasl.jaas.config?"),
        ({"ssl.ca.location": "x"}, "unknown client property ssl.ca.location", "did you mean ssl.truststore.location?"),
    ],
)
def test_properties_that_are_refused(properties: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        client_config({**ADDRESS, **properties}, {})
    assert refusal.value.message.startswith(message)
    assert hint in str(refusal.value.hint)
    assert "hunter2" not in f"{refusal.value.message}{refusal.value.hint}"


@pytest.mark.parametrize(
    ("properties", "message", "hint"),
    [
        (
            {"ssl.truststore.location": "DIR/none.pem", "ssl.truststore.type": "PEM"},
            "ssl.truststore.location: cannot read DIR/none.pem: No such file or directory",
            "name a file that this user can read",
        ),
        (
            {"ssl.keystore.location": "DIR/root.pem", "ssl.keystore.type": "PEM"},
            "ssl.keystore.* has no private key",
            "it needs the client's private key and its certificate, both as PEM blocks",
        ),
        (
            {"ssl.truststore.certificates": "x", "ssl.truststore.location": "y", "ssl.truststore.type": "PEM"},
            "ssl.truststore.certificates and ssl.truststore.location contradict each other",
            "keep one of them",
        ),
        (
            {"ssl.keystore.key": "hunter2"},
            "ssl.keystore.key is PEM, but ssl.keystore.type is JKS",
            "set ssl.keystore.type=PEM",
        ),
        (
            {**CLIENT, "ssl.keystore.password": "hunter2"},
            "ssl.keystore.password cannot be used with ssl.keystore.type=PEM",
            "remove it; the password of an encrypted key is ssl.key.password",
        ),
    ],
)
def test_stores_that_are_refused(properties: dict[str, str], message: str, hint: str, tmp_path: Path) -> None:
    shutil.copy("root.pem", tmp_path)
    with pytest.raises(UsageError) as refusal:
        client_config({**SSL, **{key: value.replace("DIR", str(tmp_path)) for key, value in properties.items()}}, {})
    assert refusal.value.message == message.replace("DIR", str(tmp_path))
    assert refusal.value.hint == hint.replace("DIR", str(tmp_path))


@pytest.mark.parametrize("hostname", ["localhost", "127.0.0.1"])
def test_a_trusted_broker(hostname: str) -> None:
    assert handshake(client_config({**SSL, **TRUST}, {}), hostname) is None


def test_another_host_name_is_refused_unless_names_are_left_unchecked() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch") as caught:
        handshake(client_config({**SSL, **TRUST}, {}), "elsewhere")
    what, hint = tls_refusal(caught.value, client_config({**SSL, **TRUST}, {}))
    assert "Hostname mismatch" in what
    assert hint.startswith("connect by a name that is in the broker's certificate")
    assert "identification" not in hint, "it must not lead to leaving names unchecked"
    handshake(client_config({**SSL, **TRUST, "ssl.endpoint.identification.algorithm": ""}, {}), "elsewhere")


@pytest.mark.parametrize("algorithm", ["", "https"])
@pytest.mark.parametrize("trust", [{}, TRUST | {"ssl.truststore.location": "another-root.pem"}])
def test_an_untrusted_broker_is_refused_whether_or_not_names_are_checked(algorithm: str, trust: dict[str, str]) -> None:
    properties = {**SSL, **trust, "ssl.endpoint.identification.algorithm": algorithm}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        handshake(client_config(properties, {}))


@pytest.mark.parametrize("keystore", ["client.pem", "client-clear-key.pem"])
def test_a_client_shows_its_certificate_and_the_chain_above_it(keystore: str) -> None:
    config = client_config({**SSL, **TRUST, **CLIENT, "ssl.keystore.location": keystore}, {})
    assert handshake(config, client_auth=True) == "client"


def test_pem_in_the_properties_themselves() -> None:
    """KIP-651: the blocks are in the values, folded by continuation lines or with escaped line ends."""

    def folded(text: str) -> str:
        return " \\\n    ".join(text.splitlines())

    key, *chain = Path("client.pem").read_text().split("-----BEGIN CERTIFICATE-----")
    certificates = "-----BEGIN CERTIFICATE-----" + "-----BEGIN CERTIFICATE-----".join(chain)
    escaped_root = Path("root.pem").read_text().replace("\n", "\\n")
    text = f"""
bootstrap.servers=kafka1:9092
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.certificates={escaped_root}
ssl.keystore.type=PEM
ssl.keystore.key={folded(key)}
ssl.keystore.certificate.chain={folded(certificates)}
ssl.key.password=${{env:KEY_PASSWORD}}
"""
    config = client_config(parse_properties(text), {"KEY_PASSWORD": KEY_PASSWORD})
    assert handshake(config, client_auth=True) == "client"


@pytest.mark.parametrize("password", [{"ssl.key.password": "wrong"}, {}])
def test_a_wrong_or_missing_key_password_is_an_error_and_never_prompted_for(password: dict[str, str]) -> None:
    keystore = {key: value for key, value in CLIENT.items() if key != "ssl.key.password"}
    config = client_config({**SSL, **TRUST, **keystore, **password}, {})
    with pytest.raises(UsageError, match="the client's key and certificate cannot be used") as refusal:
        config.ssl_context()
    assert "ssl.key.password" in str(refusal.value.hint)


def test_rubbish_for_certificates() -> None:
    rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    config = client_config({**SSL, "ssl.truststore.type": "PEM", "ssl.truststore.certificates": rubbish}, {})
    with pytest.raises(UsageError, match="the trusted certificates cannot be used"):
        config.ssl_context()


def test_pem_blocks_are_looked_for_in_linear_time() -> None:
    for text in ("-----BEGIN A-----" * 60_000, "-----BEGIN A-----" + "-a" * 500_000):
        properties = {**SSL, "ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
        with pytest.raises(UsageError, match="has no certificate"):
            client_config(properties, {})


def test_a_name_that_a_broker_advertises_with_a_nul_is_not_connected_to() -> None:
    """The resolver ended it there, and TLS then raised TypeError: a hostile source ended its engine as by a bug."""
    with listening() as listener:
        port = int(listener.address.rpartition(":")[2])
        with pytest.raises(ConnectFailedError, match="not a valid host name"):
            Connection.open("127.0.0.1\0x", port, client_config({**SSL, **TRUST}, {}))
    assert listener.received == []


def test_text_round_pem_blocks_is_no_matter(tmp_path: Path) -> None:
    store = tmp_path / "root.pem"
    store.write_text(
        f"Alias-Name: größe\n***\n{Path('root.pem').read_text()}\n***\n{Path('another-root.pem').read_text()}"
    )
    config = client_config({**SSL, **TRUST, "ssl.truststore.location": str(store)}, {})
    assert config.tls is not None
    assert str(config.tls.ca_pem).count("BEGIN CERTIFICATE") == 2
    handshake(config)
