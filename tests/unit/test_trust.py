"""What a host lets the records of mirrors do: paths, variables, sources, token endpoints, and where that is set."""

from __future__ import annotations

import ast
import pickle
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kmirror
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.exposure import cleartext_logins
from kmirror.cluster.security.msk import MskLogin
from kmirror.cluster.security.property_reader import PropertyReader
from kmirror.cluster.security.sasl import authenticate
from kmirror.cluster.security.tokens import Token
from kmirror.cluster.security.trust import REFERENCE, Judge, StoredProperties, TrustPolicy, host_policy
from kmirror.config_file import SYSTEM_FILE
from kmirror.engine.driver.source_login import contact_changes
from kmirror.errors import PolicyError, Reason, UnreachableError, UsageError
from kmirror.ops.base.trust_checks import unlimited_sources
from kmirror.state.records import MirrorRecord
from tests.support.trust import TRUST_VARIABLES

SOURCES = Path(kmirror.__file__).parent
DEPLOY = Path(__file__).parent.parent.parent / "deploy"
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram").format("p")
OAUTH = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="c" clientSecret="{}";'


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the configuration folder of a user whose host has no policy of its own."""
    for name in (*TRUST_VARIABLES, "KMIRROR_CONFIG", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "kmirror"
    folder.mkdir(parents=True)
    return folder


def policy(**variables: str) -> TrustPolicy:
    named = {f"KMIRROR_TRUST_{name.upper()}": value for name, value in variables.items()}
    return host_policy({"HOME": "/home/ann", **named})


def allows_path(path: str, **variables: str) -> bool:
    try:
        policy(**variables).refuse_path("k", path, path)
    except PolicyError:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("/etc/kmirror/a.properties", True),
        ("/etc/kmirror", True),
        ("/etc//kmirror/./a", True),
        ("/home/ann/.config/kmirror/a", True),
        ("/etc/kmirror2/a", False),
        ("/etc/kmirror/../passwd", False),
        ("/etc/kmirror/x/../a", False),
        ("etc/kmirror/a", False),
        ("/etc/passwd", False),
        ("", False),
        ("/", False),
    ],
)
def test_paths_are_kmirrors_own_folders(path: str, is_allowed: bool) -> None:
    assert allows_path(path) is is_allowed


def test_paths_can_be_replaced_and_credentials_of_a_service_are_its_own() -> None:
    assert allows_path("/run/credentials/kmirror/a") is False
    credentials = host_policy({"HOME": "/h", "CREDENTIALS_DIRECTORY": "/run/credentials/kmirror"})
    credentials.refuse_path("k", "/run/credentials/kmirror/a", "")
    for path, is_allowed in {"/opt/x/a": True, "/data/key.pem": True, "/etc/kmirror/a": False}.items():
        assert allows_path(path, paths="/opt/x/, /data/key.pem") is is_allowed
    assert allows_path("/anything", paths="/")
    with pytest.raises(UsageError, match="KMIRROR_TRUST_PATHS: opt is not an absolute path"):
        policy(paths="opt")


@pytest.mark.parametrize(
    ("sources", "address", "is_allowed"),
    [
        ("kafka1.example.com", ("kafka1.example.com", 9092), True),
        ("*.Example.com", ("KAFKA1.example.COM", 9092), True),
        ("*.example.com", ("example.com", 9092), False),
        ("*.example.com", ("kafka1.example.com.evil.org", 9092), False),
        ("*.example.com:9093", ("a.example.com", 9093), True),
        ("*.example.com:9093", ("a.example.com", 9092), False),
        ("10.1.*,b", ("10.1.2.3", 1), True),
        ("10.1.*,b", ("10.2.2.3", 1), False),
        ("[fd00::1]:9092", ("fd00::1", 9092), True),
        ("[fd00::1]:9092", ("fd00::1", 9093), False),
        ("[fd00::1]", ("fd00::1", 9093), True),
        ("fd00::*", ("fd00::7", 9093), True),
        ("fd00::*", ("fd00::7.example.org", 9093), False),
        ("10.1.2.*", ("10.1.2.example.org", 1), False),
        ("10.1.2.?:1", ("10.1.2.3", 1), True),
        ("*.2.3", ("example.2.3", 1), False),
        ("*:1", ("example.org", 1), True),
        ("*1.example.org", ("a1.example.org", 1), True),
        ("01", ("01", 1), True),
        ("", ("anywhere", 1), False),
    ],
)
def test_sources_are_hosts_with_or_without_a_port(sources: str, address: tuple[str, int], is_allowed: bool) -> None:
    try:
        policy(sources=sources).refuse_sources([address])
    except PolicyError:
        assert not is_allowed
    else:
        assert is_allowed


@pytest.mark.parametrize(
    ("variables", "url", "is_allowed"),
    [
        ({}, "https://idp.example.com/token", True),
        ({}, "http://idp.example.com/token", False),
        ({}, "https://u:p@idp.example.com/token", False),
        ({}, "https://idp.example.com/token?a=b", False),
        ({}, "ftp://idp.example.com/", False),
        ({"sources": "*.example.com:9093"}, "https://idp.example.com/token", True),
        ({"sources": "*.example.com"}, "https://idp.evil.org/token", False),
        ({"token_urls": "https://idp/t/"}, "https://idp/t/one", True),
        ({"token_urls": "https://idp/t/"}, "https://idp:443/t/one", True),
        ({"token_urls": "https://idp/t/"}, "https://idp:444/t/one", False),
        ({"token_urls": "https://idp/t/"}, "https://idp/t/../x", False),
        ({"token_urls": "https://idp/t/"}, "https://idp/t/%2e%2e/x", False),
        ({"token_urls": "https://idp/t"}, "https://idp/t2", False),
        ({"token_urls": "https://idp"}, "https://idp/any", True),
        ({"token_urls": "https://idp"}, "https://idp.evil.org/any", False),
        ({"token_urls": "http://localhost:8080/t"}, "http://localhost:8080/t", True),
        ({"token_urls": "https://idp"}, "http://idp/any", False),
    ],
)
def test_token_endpoints(variables: dict[str, str], url: str, is_allowed: bool) -> None:
    try:
        policy(**variables).refuse_token_url("u", url)
    except PolicyError:
        assert not is_allowed
    else:
        assert is_allowed


def test_a_refusal_says_which_line_to_write_where(home: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        client_config(StoredProperties({"bootstrap.servers": "a:1", "ssl.key.password": "${file:/opt/x:key}"}))
    error = refused.value
    assert (error.exit_code, error.reason) == (3, Reason.SECRET_UNRESOLVED)
    assert error.message == (
        f"ssl.key.password: this host lets no mirror name /opt/x, which is outside /etc/kmirror, {home}"
    )
    file = SYSTEM_FILE if SYSTEM_FILE.exists() else home / "kmirror.toml"
    line = f'paths = ["/etc/kmirror", "{home}", "/opt/x"]'
    assert error.hint == f"if that is intended, write below [trust] in {file}: {line}"
    assert str(error) == f"{error.message}; {error.hint}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    # what it says is what is needed
    (home / "kmirror.toml").write_text(f"[trust]\n{line}\n")
    assert client_config(StoredProperties({"bootstrap.servers": "a:1", "ssl.key.password": "${file:/opt/x:key}"}))
    assert host_policy().paths.place == str(home / "kmirror.toml")


def test_a_variable_is_named_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIRROR_TRUST_ENV", "MINE_*")
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", "a")
    stored = {"bootstrap.servers": "a:1", "ssl.key.password": "${env:YOURS}"}
    with pytest.raises(PolicyError) as refused:
        client_config(StoredProperties(stored))
    assert refused.value.hint == "if that is intended, set KMIRROR_TRUST_ENV=MINE_*,YOURS"
    with pytest.raises(PolicyError) as refused:
        client_config(StoredProperties({"bootstrap.servers": "a:1,b:2"}))
    assert refused.value.hint == "if that is intended, set KMIRROR_TRUST_SOURCES=a,b:2"


def test_a_variable_that_is_empty_allows_nothing() -> None:
    """As an empty list in `kmirror.toml` does: it is more often a value that was forgotten than no policy."""
    nothing = policy(paths="", env=" ", sources="", token_urls=",")
    assert nothing.limits_sources
    with pytest.raises(PolicyError):
        nothing.refuse_path("k", "/etc/kmirror/a", "/etc/kmirror/a")
    with pytest.raises(PolicyError):
        nothing.refuse_variable("k", "KMIRROR_A")
    with pytest.raises(PolicyError):
        nothing.refuse_sources([("a", 1)])
    with pytest.raises(PolicyError):
        nothing.refuse_token_url("k", "https://a/")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bootstrap.servers", "127.0.0.1\0.eu.example.com:1"),
        ("client.id", "\ud800"),
        ("ssl.truststore.location", "/etc/kmirror/a\0"),
        ("sasl.jaas.config", PLAIN.format("\x1b")),
        # an escape of JAAS
        ("sasl.jaas.config", PLAIN.format("\\0")),
    ],
)
def test_a_record_has_no_control_characters(key: str, value: str) -> None:
    stored = {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL", key: value}
    with pytest.raises(PolicyError, match=r"has the character \\"):
        client_config(StoredProperties(stored))


@pytest.mark.parametrize("sources", ["*.eu.example.com", None])
def test_an_address_with_a_nul_names_no_broker(sources: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver ends a name there, and the patterns of `sources` and of MSK do not."""
    if sources:
        monkeypatch.setenv("KMIRROR_TRUST_SOURCES", sources)
    for name in ("eu.example.com", "kafka.eu-west-1.amazonaws.com"):
        with pytest.raises(PolicyError):
            client_config(StoredProperties({"bootstrap.servers": f"127.0.0.1\0.{name}:1"}))
        with pytest.raises(UsageError, match=r"'127\.0\.0\.1\\x00\..* is not HOST:PORT"):
            client_config({"bootstrap.servers": f"127.0.0.1\0.{name}:1"})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("client.id", "${" * 500_000),
        ("sasl.jaas.config", "${a:" * 250_000),
        # escapes of JAAS
        ("sasl.jaas.config", PLAIN.format("\\$\\{" * 250_000)),
    ],
    ids=["no provider", "no end", "escaped"],
)
def test_references_are_looked_for_in_linear_time(key: str, text: str) -> None:
    with pytest.raises(PolicyError, match="a reference begins before the one before it has ended"):
        client_config(StoredProperties({"bootstrap.servers": "a:1", key: text}))


def test_a_file_is_named_by_one_reference_or_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors name the file, and a record could have had them show any secret: `/etc/kmirror/${env:KMIRROR_SECRET}`."""
    monkeypatch.setenv("KMIRROR_OWN", "hunter2")
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    stored = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f'{module} keyTab="/etc/kmirror/${{env:KMIRROR_OWN}}";',
    }
    with pytest.raises(PolicyError, match=r"keyTab: .* has a reference beside other text"):
        client_config(StoredProperties(stored))


@pytest.mark.parametrize(
    ("options", "sources", "is_allowed"),
    [
        ("useTicketCache=true", None, False),
        ('keyTab=""', None, False),
        ("useTicketCache=true", "a:1", True),
        ('keyTab="/etc/kmirror/k"', None, True),
        ('ticketCache="/etc/kmirror/k"', None, True),
    ],
)
def test_a_login_with_the_tickets_of_this_host_goes_to_named_sources(
    options: str, sources: str | None, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f"com.sun.security.auth.module.Krb5LoginModule required {options};",
    }
    if sources:
        monkeypatch.setenv("KMIRROR_TRUST_SOURCES", sources)
    assert client_config(stored).kerberos is not None
    if is_allowed:
        assert client_config(StoredProperties(stored)).kerberos is not None
        return
    with pytest.raises(PolicyError, match="Kerberos tickets of this host are not used for a:1") as refused:
        client_config(StoredProperties(stored))
    assert 'sources = ["a:1"]' in str(refused.value.hint)


def test_what_an_operator_gives_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("password=hunter2\n")
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN.format(f"${{file:{tmp_path}/p:password}}"),
        "client.id": "${env:ANY}",
    }
    assert client_config(given, {"ANY": "me"}).password == "hunter2"
    record = MirrorRecord("m", given, {}, None, "eve", 0)
    for stored in (record.source, pickle.loads(pickle.dumps(record)).source):
        assert isinstance(stored, StoredProperties)
        with pytest.raises(PolicyError):
            client_config(stored, {"ANY": "me"})


def test_no_code_copies_a_records_properties_into_those_of_an_operator() -> None:
    """A dict of them is not judged; those that are made end in a record again, or are only compared."""
    copies = set()
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Dict(keys=keys, values=values):
                    copied = [one for key, one in zip(keys, values, strict=True) if key is None]
                case ast.Call(func=ast.Name(id="dict"), args=copied):
                    pass
                case _:
                    copied = []
            if any(isinstance(one, ast.Attribute) and one.attr == "source" for one in copied):
                copies.add(str(file.relative_to(SOURCES)))
    assert copies == {"ops/declare/planned.py", "ops/mirrors/config.py", "ops/mirrors/create.py"}


def test_the_line_that_check_prints_allows_the_sources_of_a_mirror(home: Path) -> None:
    """An IPv6 address was printed without brackets: pasted, it was another host's name, and the mirror was refused."""
    servers = "[fd00::1]:9093,kafka1.example.com:9093"
    found = unlimited_sources(client_config({"bootstrap.servers": servers, "security.protocol": "SSL"}))
    assert found is not None
    line = found[1].partition(": ")[2]
    (home / "kmirror.toml").write_text(f"[trust]\n{line}\n")
    host_policy().refuse_sources([("fd00::1", 9093), ("kafka1.example.com", 9093)])
    assert line == 'sources = ["[fd00::1]:9093", "kafka1.example.com:9093"]'


def test_a_secret_can_be_bound_to_its_sources_in_its_file_or_folder(home: Path) -> None:
    (home / "a.properties").write_text("password=hunter2\nkmirror.allowed.sources=kafka1.example.com, *.eu:9093\n")
    (home / "keys").mkdir()
    (home / "keys" / "password").write_text("hunter2")
    (home / "keys" / "kmirror.allowed.sources").write_text("kafka1.example.com,*.eu:9093\n")

    def login(reference: str, servers: str) -> StoredProperties:
        return StoredProperties(
            {
                "bootstrap.servers": servers,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": PLAIN.format(reference),
            }
        )

    for reference in (f"${{file:{home}/a.properties:password}}", f"${{dir:{home}/keys:password}}"):
        for servers in ("kafka1.example.com:1", "kafka1.example.com:1,b.eu:9093"):
            assert client_config(login(reference, servers)).password == "hunter2"
        for servers in ("kafka2.example.com:1", "kafka1.example.com:1,b.eu:9092"):
            with pytest.raises(PolicyError, match=r"is for kafka1\.example\.com") as refused:
                client_config(login(reference, servers))
            assert "hunter2" not in str(refused.value)
            assert "kmirror.allowed.sources" in str(refused.value.hint)


@pytest.mark.parametrize("endpoint", ["https://evil.net/", "https://evil.net:9093/t", "https://idp.example.com/t"])
def test_a_bound_secret_goes_to_no_other_token_endpoint(endpoint: str, home: Path) -> None:
    """The brokers that the record named were those of the secret, and were never contacted."""
    (home / "a.properties").write_text(
        f"secret=hunter2\nline={OAUTH.format('hunter2')}\n"
        "kmirror.allowed.sources=kafka1.example.com:9093,idp.example.com:9093\n"
    )
    file = f"${{file:{home}//a.properties:"
    for line in (OAUTH.format(f"{file}secret}}"), f"{file}line}}"):
        stored = StoredProperties(
            {
                "bootstrap.servers": "kafka1.example.com:9093",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": line,
                "sasl.oauthbearer.token.endpoint.url": endpoint,
            }
        )
        if "example.com" in endpoint:
            assert client_config(stored).tokens is not None
            continue
        with pytest.raises(PolicyError, match=r"not for the token endpoint evil\.net"):
            client_config(stored)


def test_every_file_of_a_bound_folder_is_bound_and_every_way_to_read_a_bound_file(home: Path) -> None:
    """A folder's binding counted only for ${dir:…}, and that of a file only for ${file:…}."""
    keys = home / "keys"
    keys.mkdir()
    (keys / "kmirror.allowed.sources").write_text("kafka1.example.com\n")
    for bound in (home / "a.properties", home / "bom.properties"):
        mark = "\ufeff" if bound.stem == "bom" else ""
        bound.write_text(f"{mark}kmirror.allowed.sources=kafka1.example.com\npassword=hunter2\n", "utf-8")
    (keys / "x.properties").write_text("password=hunter2\n")
    plain = {"sasl.mechanism": "PLAIN"}
    token = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH.partition(' clientId')[0]};"}
    krb = 'com.sun.security.auth.module.Krb5LoginModule required serviceName=k principal=p keyTab="{}";'
    for found in (
        {**plain, "sasl.jaas.config": PLAIN.format(f"${{dir:{home}:a.properties}}")},
        {**plain, "sasl.jaas.config": PLAIN.format(f"${{dir:{home}:bom.properties}}")},
        {**plain, "sasl.jaas.config": PLAIN.format(f"${{file:{keys}/x.properties:password}}")},
        {**token, "sasl.oauthbearer.token.endpoint.url": f"file://{keys}/token"},
        {"sasl.mechanism": "GSSAPI", "sasl.jaas.config": krb.format(keys / "keytab")},
    ):
        stored = {"bootstrap.servers": "kafka1.example.com:9093", "security.protocol": "SASL_SSL", **found}
        assert client_config(StoredProperties(stored))
        with pytest.raises(PolicyError, match=r"is for kafka1\.example\.com, not for evil\.net:9093") as refused:
            client_config(StoredProperties({**stored, "bootstrap.servers": "evil.net:9093"}))
        assert "hunter2" not in str(refused.value)


def test_a_login_with_the_credentials_of_this_host_goes_to_aws_or_to_named_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def login(servers: str) -> StoredProperties:
        return StoredProperties(
            {
                "bootstrap.servers": servers,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            }
        )

    assert client_config(login("b-1.x.kafka.eu-west-1.amazonaws.com:9098")).tokens is not None
    msk = "b-1.x.kafka-serverless.cn-north-1.amazonaws.com.cn:9098"
    assert client_config(login(msk)).tokens is not None
    for other in (
        "kafka.example.com:1",
        "b-1.x.kafka.eu-west-1.amazonaws.com.example.org:1",
        "ec2-1-2-3-4.eu-west-1.compute.amazonaws.com:9098",
        "evil.kafka.eu-west-1.elb.amazonaws.com:9098",
        f"{msk},evil:1",
    ):
        with pytest.raises(PolicyError, match="AWS credentials is not sent to"):
            client_config(login(other))
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", "vpce.example.com")
    assert client_config(login("vpce.example.com:14001")).tokens is not None


MSK = {
    "bootstrap.servers": "b-1.x.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
}
UNVERIFIED = [
    {"security.protocol": "SASL_PLAINTEXT"},
    {"ssl.endpoint.identification.algorithm": ""},
    {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n",
    },
]


@pytest.mark.parametrize("changes", UNVERIFIED)
def test_the_policy_may_keep_passwords_and_tokens_from_unverified_brokers_and_does_those_of_aws(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record says whether its brokers are verified: a name of MSK or of `sources` alone proves nothing."""
    plain = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN.format("p")}
    scram = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": SCRAM}
    for sources in ("", "*.amazonaws.com"):
        if sources:
            monkeypatch.setenv("KMIRROR_TRUST_SOURCES", sources)
        with pytest.raises(PolicyError, match=r"not sent to b-1\.x\.kafka.*:9098 without verified TLS"):
            client_config(StoredProperties({**MSK, **changes}))
    assert client_config({**MSK, **changes}).tokens
    assert client_config(StoredProperties({**MSK, **plain, **changes})).password
    monkeypatch.setenv("KMIRROR_TRUST_UNVERIFIED", "a.example.com")
    for login in ({}, plain):
        with pytest.raises(PolicyError, match="without verified TLS") as refused:
            client_config(StoredProperties({**MSK, **login, **changes}))
        assert str(refused.value.hint).endswith(f"UNVERIFIED=a.example.com,{MSK['bootstrap.servers']}")
        assert client_config(StoredProperties({**MSK, **login}))
    assert client_config(StoredProperties({**MSK, **scram, **changes}))
    monkeypatch.setenv("KMIRROR_TRUST_UNVERIFIED", "*.amazonaws.com")
    for login in ({}, plain):
        assert client_config(StoredProperties({**MSK, **login, **changes}))


def test_a_token_of_this_hosts_aws_credentials_goes_to_no_other_advertised_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster of MSK that someone else owns advertised brokers of theirs, and these got the token."""
    sent: list[Any] = []
    monkeypatch.setattr(MskLogin, "fetch", lambda *_: Token("t", time.time() + 60))

    def exchange(request: Any, *_: Any) -> Any:
        sent.append(request)
        return SimpleNamespace(error_code=0, auth_bytes=b"", session_lifetime_ms=0)

    def login_at(address: str, properties: dict[str, str]) -> None:
        authenticate(exchange, client_config(properties), address)

    for sources in ("", "*.kafka.eu-west-1.amazonaws.com"):
        if sources:
            monkeypatch.setenv("KMIRROR_TRUST_SOURCES", sources)
        for address in ("evil.net:9098", "[fd00::1]:9098"):
            with pytest.raises(UnreachableError, match="AWS credentials is not sent to ") as refused:
                login_at(address, StoredProperties(MSK))
            assert refused.value.reason is Reason.AUTHENTICATION_FAILED
            assert address in str(refused.value.hint)
        assert not sent
        login_at("b-2.x.kafka.eu-west-1.amazonaws.com:9098", StoredProperties(MSK))
        login_at("evil.net:9098", MSK)
        assert len(sent) == 4
        sent.clear()
    monkeypatch.setenv("KMIRROR_TRUST_SOURCES", "*.amazonaws.com,b*.example.com,[fd00::1]")
    for address in ("b1.example.com:9001", "[fd00::1]:9098"):
        login_at(address, StoredProperties(MSK))


def test_a_policy_that_cannot_be_read_allows_nothing(home: Path) -> None:
    (home / "kmirror.toml").write_text("[trust\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        client_config(StoredProperties({"bootstrap.servers": "a:1"}))


def test_the_stores_of_a_record_are_judged_each_time_they_are_read(home: Path) -> None:
    store = home / "ca.pem"
    store.write_text("-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n")
    properties = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.truststore.type": "PEM"}
    config = client_config(StoredProperties({**properties, "ssl.truststore.location": str(store)}))
    assert config.tls is not None
    assert isinstance(config.tls.properties, StoredProperties)
    assert config.with_current_stores() is config


def test_references_of_unknown_providers_are_left_to_their_own_error() -> None:
    found = REFERENCE.search("${vault:a:b}")
    assert isinstance(found, re.Match)
    Judge(policy(), ()).reference("k", found)


def test_what_changes_of_whom_a_source_is() -> None:
    before = {"bootstrap.servers": "a:1", "client.id": "x"}
    assert contact_changes(before, {**before, "client.id": "y"}) == []
    assert contact_changes(before, {"bootstrap.servers": "b:1", "sasl.mechanism": "PLAIN"}) == [
        "bootstrap.servers from a:1 to b:1",
        "sasl.mechanism from its default to PLAIN",
    ]
    before |= {"sasl.jaas.config": PLAIN.format("hunter2"), "ssl.truststore.certificates": "a"}
    after = before | {"sasl.jaas.config": PLAIN.format("hunter3"), "ssl.truststore.location": "/a"}
    del after["ssl.truststore.certificates"]
    assert contact_changes(before, after) == [
        "sasl.jaas.config to another value",
        "ssl.truststore.certificates to another value",
        "ssl.truststore.location to another value",
    ]


@pytest.mark.parametrize(
    ("properties", "settings"),
    [
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, ["set security.protocol=SASL_SSL"]),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}, ["set security.protocol=SASL_SSL"]),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, []),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, []),
        ({"security.protocol": "PLAINTEXT", "sasl.mechanism": "PLAIN"}, []),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "http://idp/t",
            },
            ["set sasl.oauthbearer.token.endpoint.url=https://…"],
        ),
    ],
)
def test_logins_that_are_sent_unencrypted_are_named_with_their_remedy(
    properties: dict[str, str], settings: list[str]
) -> None:
    assert [hint for _, hint in cleartext_logins(properties)] == settings


def deployed(servers: str) -> StoredProperties:
    """Return the record of a mirror as docs/deploying.md creates it, for a source at these brokers."""
    password = "${file:/etc/kmirror/client/source.properties:password}"
    return StoredProperties(
        {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": PLAIN.replace("plain.PlainLogin", "scram.ScramLogin").format(password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/etc/kmirror/client/ca.pem",
        }
    )


@pytest.mark.parametrize("service", ["systemd", "kubernetes"])
def test_the_policies_of_the_deploy_files_allow_their_mirrors_and_no_other(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if service == "systemd":
        monkeypatch.setenv("KMIRROR_CONFIG", str(DEPLOY / "systemd" / "kmirror.toml"))
        source = "kafka-a1.example.com:9093"
    else:
        for overlay in ("local", "spark"):
            text = (DEPLOY / "kubernetes" / "overlays" / overlay / "kustomization.yaml").read_text()
            found = re.search(r"- (KMIRROR_TRUST_SOURCES)=(\S+)", text)
            assert found is not None
            monkeypatch.setenv(found[1], found[2])
        source = "kafka-a1.example.com:9092"
    assert PropertyReader.of(deployed(source), {}).judge is not None
    for other in ("kafka-a1.example.org:9093", f"{source},evil:1"):
        with pytest.raises(PolicyError, match="this host lets no mirror log in to"):
            PropertyReader.of(deployed(other), {})
    elsewhere = StoredProperties({**deployed(source), "ssl.truststore.location": "/etc/ssl/ca.pem"})
    with pytest.raises(PolicyError, match=r"this host lets no mirror name /etc/ssl/ca\.pem"):
        PropertyReader.of(elsewhere, {})


def test_executors_are_given_the_policy_of_their_engine() -> None:
    text = (DEPLOY / "kubernetes" / "overlays" / "spark" / "kustomization.yaml").read_text()
    assert "spark.executorEnv.KMIRROR_TRUST_SOURCES=$(KMIRROR_TRUST_SOURCES)" in text
