"""Read from `sasl.*` properties how to log in: the mechanism, and a user name and password or a source of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn
from urllib.parse import urlsplit

from kmirror.cluster.security import kerberos, msk
from kmirror.cluster.security.jaas import JaasEntry, parse_jaas
from kmirror.cluster.security.kerberos import KerberosLogin
from kmirror.cluster.security.properties import is_reference, resolve_value
from kmirror.cluster.security.property_reader import PropertyReader
from kmirror.cluster.security.tls_material import tls_material
from kmirror.cluster.security.token_endpoint import TokenEndpoint, TokenFile, file_of_url
from kmirror.cluster.security.tokens import TokenSource
from kmirror.errors import UsageError

_JAAS = "sasl.jaas.config"
_MODULES = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    msk.MECHANISM: "IAMLoginModule",
    kerberos.MECHANISM: "Krb5LoginModule",
}
SASL_MECHANISMS = tuple(_MODULES)
_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_LOGIN_HANDLER, _CLIENT_HANDLER = "sasl.login.callback.handler.class", "sasl.client.callback.handler.class"
_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
#: Java classes whose function kmirror has built in; others are refused.
_KNOWN_CLASSES = {
    _LOGIN_HANDLER: {
        f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler",
        msk.LOGIN_HANDLER,
    },
    _CLIENT_HANDLER: {f"{_OAUTH}.internals.OAuthBearerSaslClientCallbackHandler", msk.CLIENT_HANDLER},
    _RETRIEVER: {f"{_OAUTH}.{name}JwtRetriever" for name in ("ClientCredentials", "Default", "File")},
}
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_EXTENSION = "extension_"


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in; all None without SASL."""

    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tokens: TokenSource | None = None
    kerberos: KerberosLogin | None = None


def check_handlers(reader: PropertyReader) -> None:
    """Refuse Java classes that would affect the login and are unknown here.

    Raises:
        UsageError: names the property.
    """
    for key, known in _KNOWN_CLASSES.items():
        if (name := reader.text(key)) and name not in known:
            raise UsageError(
                f"{key} names a Java class, which kmirror cannot load: {reader.properties[key]}",
                f"remove {key}; kmirror logs in with {', '.join(SASL_MECHANISMS)}",
            )


def read_login(reader: PropertyReader, hosts: Iterable[str]) -> Login:
    """Read the login to these brokers.

    Raises:
        UsageError: something is missing, contradictory or not supported.
        PolicyError: reason SECRET_UNRESOLVED; this host's policy does not allow it.
        UnreachableError: reason SECRET_UNRESOLVED; a reference has no value here.
    """
    mechanism = reader.text("sasl.mechanism") or kerberos.MECHANISM
    if mechanism not in SASL_MECHANISMS:
        raise UsageError(
            f"sasl.mechanism={reader.properties['sasl.mechanism']} is not supported",
            f"kmirror knows {', '.join(SASL_MECHANISMS)}",
        )
    is_msk = mechanism == msk.MECHANISM or reader.text(_LOGIN_HANDLER) == msk.LOGIN_HANDLER
    if mechanism == "OAUTHBEARER" and not is_msk:
        reader = _judging_endpoint(reader)
    options = _Options(reader, _jaas_entry(reader, mechanism))
    if is_msk:
        login = msk.msk_login(options.starting(""), hosts, _refresh_part(reader))
        if reader.judge is not None:
            reader.judge.policy.refuse_aws(reader.judge.servers)
            login = replace(login, policy=reader.judge.policy)
        return Login("OAUTHBEARER", tokens=login)
    if mechanism == "OAUTHBEARER":
        return Login(mechanism, tokens=_token_source(options))
    if mechanism == kerberos.MECHANISM:
        return Login(mechanism, kerberos=_kerberos_login(options))
    username, password = options.text("username"), options.text("password")
    if not username or not password:
        raise UsageError(f"{_JAAS} lacks the {'password' if username else 'username'}", "name both, in quotes")
    return Login(mechanism, username, password)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the JAAS line, resolved one by one: a secret may contain quotes and semicolons."""

    reader: PropertyReader
    entry: JaasEntry

    def text(self, name: str) -> str | None:
        written, judge = self.entry.options.get(name, ""), self.reader.judge
        found = resolve_value(_JAAS, written, self.reader.environ, judge)
        if judge is not None and found:
            judge.file(name, found, written)
        return found or None

    def either(self, key: str, name: str) -> str | None:
        """Return a property (KIP-1139), or else the JAAS option that it replaces."""
        return self.reader.text(key) or self.text(name)

    def starting(self, prefix: str) -> dict[str, str]:
        return {
            name.removeprefix(prefix): self.text(name) or "" for name in self.entry.options if name.startswith(prefix)
        }


def _jaas_entry(reader: PropertyReader, mechanism: str) -> JaasEntry:
    line, expected = reader.properties.get(_JAAS, ""), _MODULES[mechanism]
    if not line.strip():
        lacks = "a user name and a password" if mechanism in _BY_PASSWORD else "its login module"
        raise UsageError(f"{_JAAS} is missing, and {mechanism} needs {lacks}", f"set {_JAAS}")
    entries = _referenced_entries(reader, line) if is_reference(line) else parse_jaas(line)
    if len(entries) > 1:
        raise UsageError(f"{_JAAS} has {len(entries)} login modules", "keep one of them")
    if entries[0].login_module.rsplit(".", 1)[-1] != expected:
        shown = line.strip() if is_reference(line) else entries[0].login_module
        raise UsageError(f"{_JAAS}: {shown} does not fit sasl.mechanism={mechanism}", f"use {expected}")
    return entries[0]


def _referenced_entries(reader: PropertyReader, line: str) -> tuple[JaasEntry, ...]:
    """Return the login modules of a line that is a reference; errors show nothing of what it stands for."""
    text = resolve_value(_JAAS, line, reader.environ, reader.judge)
    try:
        return parse_jaas(text)
    except UsageError as error:
        raise UsageError(f"{_JAAS}: what {line.strip()} refers to is not a login module's line", error.hint) from None


def _kerberos_login(options: _Options) -> KerberosLogin:
    key = "sasl.kerberos.service.name"
    service = options.either(key, "serviceName")
    if service is None:
        raise UsageError(f"{key} is missing", f"set {key} to the first part of the brokers' principals, often kafka")
    if not re.fullmatch("[A-Za-z0-9._-]+", service):
        raise UsageError(f"{key} is not the name of a service", "write the part before the slash: kafka")
    keytab, cache, judge = options.text("keyTab"), options.text("ticketCache"), options.reader.judge
    if judge is not None and not keytab and not cache:
        judge.policy.refuse_tickets(judge.servers)
    return KerberosLogin(service, options.text("principal"), keytab, cache)


def _judging_endpoint(reader: PropertyReader) -> PropertyReader:
    """Refuse where a record has tokens come from; return a reader of the secrets that are sent there."""
    judge, url = reader.judge, reader.text(_ENDPOINT)
    if judge is None or url is None:
        return reader
    if path := file_of_url(url):
        judge.policy.refuse_path(_ENDPOINT, path, path)
        judge.secret(_ENDPOINT, path)
        return reader
    return replace(reader, judge=judge.with_token_url(_ENDPOINT, url))


def _token_source(options: _Options) -> TokenSource:
    reader = options.reader
    url = reader.text(_ENDPOINT)
    extensions = tuple(sorted(options.starting(_EXTENSION).items()))
    part = _refresh_part(reader)
    if url is None:
        _refuse_without_endpoint(options)
    if path := file_of_url(url):
        return TokenFile(path, extensions, part)
    if not url.startswith(("http://", "https://")) or (place := _netloc(url)) is None:
        raise UsageError(f"{_ENDPOINT} is not a URL that kmirror knows", "write https://…, http://… or file:///PATH")
    if "@" in place:
        raise UsageError(f"{_ENDPOINT} has a login", "name the client's id and secret in properties of their own")
    client_id = options.either("sasl.oauthbearer.client.credentials.client.id", "clientId")
    secret = options.either("sasl.oauthbearer.client.credentials.client.secret", "clientSecret")
    if not client_id or not secret:
        lacks = "secret" if client_id else "id"
        raise UsageError(
            f"the client {lacks} for {_ENDPOINT} is missing",
            f'set sasl.oauthbearer.client.credentials.client.{lacks}, or client{lacks.title()}="…" in {_JAAS}',
        )
    return TokenEndpoint(
        url=url,
        client_id=client_id,
        client_secret=secret,
        scope=options.either("sasl.oauthbearer.scope", "scope") or "",
        encodes_credentials=(reader.text("sasl.oauthbearer.header.urlencode") or "").lower() == "true",
        extensions=extensions,
        refresh_part=part,
        connect_timeout_ms=reader.number("sasl.login.connect.timeout.ms", 1),
        read_timeout_ms=reader.number("sasl.login.read.timeout.ms", 1),
        retry_backoff_ms=reader.number("sasl.login.retry.backoff.ms", 1) or 100,
        retry_backoff_max_ms=reader.number("sasl.login.retry.backoff.max.ms", 1) or 10_000,
        tls=tls_material(options.text) if url.startswith("https://") else None,
    )


def _netloc(url: str) -> str | None:
    """Return the part of a URL that names its host, None if it has none."""
    try:
        return urlsplit(url).netloc or None
    except ValueError:
        return None


def _refuse_without_endpoint(options: _Options) -> NoReturn:
    unsecured = any(name.startswith("unsecuredLogin") for name in options.entry.options)
    raise UsageError(
        f"{_JAAS} asks for an unsigned token, which is not supported" if unsecured else f"{_ENDPOINT} is missing",
        f"set {_ENDPOINT} to where tokens come from: https://… or file:///PATH",
    )


def _refresh_part(reader: PropertyReader) -> float:
    key = "sasl.login.refresh.window.factor"
    text = reader.text(key)
    try:
        part = 0.8 if text is None else float(text)
    except ValueError:
        part = 0.0
    if not 0.5 <= part <= 1.0:
        raise UsageError(f"{key}={reader.properties[key]} is not a number from 0.5 to 1.0", f"correct {key}")
    return part
