"""Translate Java client properties: to our own connections, to Python's TLS.

`client_config` takes properties as Kafka's tools do, resolves the references in them, reads the stores they name, and
returns a `ClientConfig` with everything needed to connect. It pickles; the secrets in it never show in its repr.

Known keys of Kafka's clients that do not concern kmirror are accepted and ignored, as Kafka's own tools do. Keys with
a say in security that we cannot follow are refused: users would rely on them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.security.kerberos import KerberosLogin
from kmirror.cluster.security.login import Login, check_handlers, read_login
from kmirror.cluster.security.msk import MskLogin
from kmirror.cluster.security.properties import is_reference, referenced_files
from kmirror.cluster.security.property_reader import PropertyReader, parse_bootstrap_servers
from kmirror.cluster.security.tls_material import STORE_LOCATIONS, TlsMaterial, file_stamps, tls_material
from kmirror.cluster.security.tokens import TokenSource
from kmirror.cluster.security.trust import StoredProperties
from kmirror.errors import PolicyError, Reason, UnreachableError, UsageError
from kmirror.settings.client_keys import closest_client_key, is_client_key

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_JAVA_CLASSES = ("sasl.login.class", "security.providers", "ssl.engine.factory.class")
#: Both clients use TLS 1.2 and 1.3, and the cipher suites of OpenSSL: other values would have no effect in one of them.
_AS_IT_IS = {
    "ssl.protocol": {"TLS", "TLSv1.3"},
    "ssl.cipher.suites": set[str](),
    "ssl.provider": set[str](),
    "ssl.keymanager.algorithm": {"SunX509", "PKIX"},
    "ssl.trustmanager.algorithm": {"SunX509", "PKIX"},
    "ssl.secure.random.implementation": set[str](),
    "client.dns.lookup": {"use_all_dns_ips", "default"},
}
_TLS_VERSIONS = {"TLSv1.2", "TLSv1.3"}
#: A login by a signed assertion (KIP-1139) instead of a secret.
_ASSERTION = "sasl.oauthbearer.assertion."
#: Mechanisms whose password or token anyone who receives it can use.
_SENT_AS_THEY_ARE = ("PLAIN", "OAUTHBEARER")
_PASSWORD_LOGIN = ("sasl.mechanism", "sasl.jaas.config")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What a client needs to connect to a cluster; times in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "kmirror"
    #: client.rack: records are fetched from the replica in this rack, if there is one (KIP-392).
    rack: str = ""
    #: One of SECURITY_PROTOCOLS.
    security_protocol: str = "PLAINTEXT"
    #: As brokers know it; None, like name and password, if the protocol has no SASL.
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    #: For OAUTHBEARER.
    tokens: TokenSource | None = None
    #: For GSSAPI.
    kerberos: KerberosLogin | None = None
    #: None if connections are not encrypted.
    tls: TlsMaterial | None = None
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    #: The properties that user name and password were read from, if they contain references.
    login_properties: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    #: The id of the cluster, if it is known: a broker of another one is not asked anything.
    cluster_id: str | None = field(default=None, compare=False)
    #: The reason code of an error about a broker of another cluster.
    wrong_cluster: Reason | None = field(default=None, compare=False)
    #: None for the default of the operating system or the caller.
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None

    def expecting(self, cluster_id: str | None, wrong_cluster: Reason | None = None) -> ClientConfig:
        """Return a copy for the cluster with this id; `wrong_cluster` is the reason of errors about another one."""
        return replace(self, cluster_id=cluster_id, wrong_cluster=wrong_cluster)

    def with_current_stores(self) -> ClientConfig:
        """Return a copy with the current content of its stores; itself if they are unusable, as while being written."""
        tls = self.tls and self.tls.current()
        return self if tls is self.tls else replace(self, tls=tls)

    def with_current_password(self) -> ClientConfig:
        """Return a copy with the user name and password that its references resolve to now; itself if they do not."""
        if not self.login_properties:
            return self
        try:
            login = read_login(PropertyReader.of(self.login_properties, None), ())
        except (UsageError, PolicyError, UnreachableError):
            return self
        return replace(self, username=login.username, password=login.password)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a new TLS context for this cluster, from the current content of its stores; None without TLS.

        Raises:
            UsageError: the certificates or the key cannot be used.
        """
        return self.tls.current().context() if self.tls is not None else None


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How a worker connects to a cluster, and to no other one; the properties hold references, no secrets."""

    properties: Mapping[str, str]
    cluster_id: str | None

    def config(self) -> ClientConfig:
        """Resolve the references on this host; raises as `client_config`."""
        return client_config(self.properties).expecting(self.cluster_id)


def client_config(properties: Mapping[str, str], environ: Mapping[str, str] | None = None) -> ClientConfig:
    """Translate Java client properties and resolve their references; `environ` replaces the process's environment.

    `StoredProperties` are judged by this host's policy before anything they name is used.

    Raises:
        UsageError: a key is misspelt, a value is invalid, a file cannot be read, or it is not supported.
        PolicyError: reason SECRET_UNRESOLVED; this host's policy does not allow what a record names.
        UnreachableError: reason SECRET_UNRESOLVED; a reference has no value here.
    """
    check_client_keys(properties)
    reader = PropertyReader.of(properties, environ)
    for key in _JAVA_CLASSES:
        if reader.text(key):
            raise UsageError(f"{key} names a Java class, which kmirror cannot load", f"remove {key}")
    _check_without_effect(reader)
    check_handlers(reader)
    protocol = reader.choice("security.protocol", SECURITY_PROTOCOLS, "PLAINTEXT")
    servers = parse_bootstrap_servers(reader.text("bootstrap.servers") or "")
    hosts = [host for host, _ in servers]
    login = read_login(reader, hosts) if protocol.startswith("SASL_") else Login()
    refers = login.password is not None and referenced_files(properties.get("sasl.jaas.config", ""))
    login_properties = _selected(properties, _PASSWORD_LOGIN) if refers else {}
    verify_hostname = reader.verify_hostname()
    if login.mechanism in _SENT_AS_THEY_ARE:
        _judge_unverified(reader, protocol, verify_hostname, is_aws=isinstance(login.tokens, MskLogin))
    return ClientConfig(
        bootstrap_servers=servers,
        client_id=reader.text("client.id") or "kmirror",
        rack=reader.text("client.rack") or "",
        security_protocol=protocol,
        sasl_mechanism=login.mechanism,
        username=login.username,
        password=login.password,
        tokens=login.tokens,
        kerberos=login.kerberos,
        tls=_tls_material(reader, verify_hostname=verify_hostname) if protocol.endswith("SSL") else None,
        login_properties=login_properties,
        request_timeout_ms=reader.number("request.timeout.ms", 1) or 30_000,
        connect_timeout_ms=reader.number("socket.connection.setup.timeout.ms", 1) or 10_000,
        send_buffer_bytes=reader.buffer_size("send.buffer.bytes"),
        receive_buffer_bytes=reader.buffer_size("receive.buffer.bytes"),
    )


def _judge_unverified(reader: PropertyReader, protocol: str, verify_hostname: bool, *, is_aws: bool) -> None:
    """Refuse to send a password or token to brokers that are not verified; an own CA in a record verifies nothing."""
    authorities = reader.properties.get("ssl.truststore.certificates", "").strip()
    is_verified = protocol == "SASL_SSL" and verify_hostname and (not authorities or is_reference(authorities))
    if reader.judge is not None and not is_verified:
        reader.judge.policy.refuse_unverified(reader.judge.servers, is_aws=is_aws)


def _tls_material(reader: PropertyReader, *, verify_hostname: bool) -> TlsMaterial:
    """Read the stores; errors show the name of a file as it is written, which may be a reference."""
    properties = _selected(reader.properties, [key for key in reader.properties if key.startswith("ssl.")])
    stamps = file_stamps(properties)
    try:
        tls = tls_material(reader.text)
    except UsageError as error:
        message, hint = error.message, error.hint or ""
        for key in STORE_LOCATIONS:
            if key in reader.properties and (path := reader.text(key)):
                written = reader.properties[key].strip()
                message, hint = message.replace(path, written), hint.replace(path, written)
        raise UsageError(message, hint) from None
    return replace(tls, verify_hostname=verify_hostname, properties=properties, stamps=stamps)


def _check_without_effect(reader: PropertyReader) -> None:
    """Refuse properties with a say in security that we would not follow, unless they say what we do anyway."""
    for key, known in _AS_IT_IS.items():
        if (value := reader.text(key)) and value not in known:
            raise UsageError(
                f"{key}={reader.properties[key]} would have no effect in kmirror",
                f"remove it, or write {' or '.join(sorted(known))}" if known else "remove it",
            )
    key = "ssl.enabled.protocols"
    versions = {part.strip() for part in (reader.text(key) or "").split(",")} - {""}
    if versions and versions != _TLS_VERSIONS:
        raise UsageError(
            f"{key}={reader.properties[key]}: kmirror always offers {' and '.join(sorted(_TLS_VERSIONS))}",
            "remove it, and restrict the versions at the brokers or in this machine's openssl.cnf (MinProtocol)",
        )
    if assertions := sorted(key for key in reader.properties if key.startswith(_ASSERTION) and reader.text(key)):
        raise UsageError(
            f"{assertions[0]}: logins by signed assertions are not supported",
            "remove it, and log in with the client's id and secret",
        )


def _selected(properties: Mapping[str, str], keys: Iterable[str]) -> Mapping[str, str]:
    """Return the properties with these keys, for reading them again later; judged then if they are judged now."""
    found = {key: properties[key] for key in ("bootstrap.servers", *keys) if key in properties}
    return StoredProperties(found) if isinstance(properties, StoredProperties) else found


def check_client_keys(properties: Mapping[str, str]) -> None:
    """Refuse keys that look like a misspelt key of a Kafka client; keys of other programs are accepted.

    Raises:
        UsageError: names the key and the one that was probably meant.
    """
    for key in properties:
        if not is_client_key(key) and (meant := closest_client_key(key)):
            raise UsageError(f"unknown client property {key}", f"did you mean {meant}?")


def scram_escaped(username: str) -> str:
    """Return a user name as SCRAM messages encode it (RFC 5802, saslname): `=` is `=3D`, `,` is `=2C`."""
    return username.replace("=", "=3D").replace(",", "=2C")
