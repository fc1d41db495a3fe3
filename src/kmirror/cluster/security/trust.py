"""What a mirror's record may make this host do.

A mirror's client properties are stored on the destination, where others may write too, and used on hosts that have
secrets of their own. Properties that come from a record are `StoredProperties`; the host's `TrustPolicy` decides which
files and variables they may name, and who may be sent a login. What an operator gives on this host is not judged.

The policy is `[trust]` in `kmirror.toml`, or environment variables, which replace it key by key:

    [trust]
    paths = ["/etc/kmirror"]                      # KMIRROR_TRUST_PATHS
    env = ["KMIRROR_*"]                           # KMIRROR_TRUST_ENV
    sources = ["*.eu.example.com:9093"]           # KMIRROR_TRUST_SOURCES; default: any
    token_urls = ["https://login.example.com/"]   # KMIRROR_TRUST_TOKEN_URLS; default: https at the hosts of `sources`
    unverified = []                               # KMIRROR_TRUST_UNVERIFIED; default: any, but none for AWS tokens
"""

from __future__ import annotations

import ipaddress
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from kmirror.bounded_files import expanded, read_file
from kmirror.cluster.security.jaas import parse_jaas
from kmirror.config_file import TRUST_KEYS, config_folder, load_config_file
from kmirror.errors import PolicyError, Reason, UnreachableError, UsageError
from kmirror.words import address_of, visible

#: Beside a secret, in its properties file or folder: the sources that may be sent it, like `sources`.
BINDING = "kmirror.allowed.sources"

#: `${PROVIDER:PATH:KEY}` or `${PROVIDER:KEY}` (KIP-297, KIP-421).
REFERENCE = re.compile(r"\$\{(?P<provider>[^}:]*):(?:(?P<path>[^}:]*):)?(?P<key>[^}]*)\}")

#: Control characters but tab and line ends: C libraries end a text at NUL. And halves of characters.
_IN_NO_PROPERTY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
#: Properties and JAAS options that name a file, and those that hold a secret or a certificate.
_FILES = frozenset({"ssl.truststore.location", "ssl.keystore.location", "keyTab", "ticketCache"})
_SECRETS = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "password",
        "clientSecret",
    }
)
_MAY_REFER = _FILES | _SECRETS
#: The name of a broker of Amazon MSK. Elsewhere below amazonaws.com any customer of AWS may have names.
MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")
_DEFAULT_ENV = ("KMIRROR_*",)
_VARIABLES = {key: f"KMIRROR_TRUST_{key.upper()}" for key in TRUST_KEYS}
_PORTS = {"https": 443, "http": 80}

Addresses = Sequence[tuple[str, int]]


class StoredProperties(dict[str, str]):
    """Client properties from a mirror's record, also after pickling; a copy by `dict` would not be judged."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """The entries of one key, None for its default; and the file or variable in which they can be changed."""

    key: str
    entries: tuple[str, ...] | None
    place: str
    is_variable: bool

    def hint(self, entry: str, now: Sequence[str]) -> str:
        """Return what to set so that an entry is allowed too."""
        return f"if that is intended, {self.line([*now, entry])}"

    def line(self, entries: Iterable[str]) -> str:
        """Return what to set so that these are the entries."""
        names = list(dict.fromkeys(entries))
        if self.is_variable:
            return f"set {self.place}={','.join(names)}"
        return f"write below [trust] in {self.place}: {self.key} = {json.dumps(names, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """Which files, variables, brokers and token endpoints stored properties may make this host use."""

    paths: _Rule
    env: _Rule
    sources: _Rule
    token_urls: _Rule
    unverified: _Rule
    default_paths: tuple[str, ...]

    @property
    def limits_sources(self) -> bool:
        """Return whether `sources` is set."""
        return self.sources.entries is not None

    def refuse_path(self, key: str, path: str, shown: str) -> None:
        """Refuse a file outside the allowed folders. Links in these folders are the host's own, and are followed."""
        allowed = self.default_paths if self.paths.entries is None else self.paths.entries
        if not path.startswith("/") or ".." in path.split("/"):
            raise _refused(f"{key}: {shown} is not an absolute path without ..", "write the file's full path")
        plain = posixpath.normpath(path)
        if not any(plain == one or plain.startswith(f"{one.rstrip('/')}/") for one in allowed):
            raise _refused(
                f"{key}: this host lets no mirror name {shown}, which is outside {', '.join(allowed) or 'all folders'}",
                self.paths.hint(path, allowed) if shown == path else "name an allowed file",
            )

    def refuse_variable(self, key: str, name: str) -> None:
        """Refuse an environment variable that does not match."""
        allowed = _DEFAULT_ENV if self.env.entries is None else self.env.entries
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            raise _refused(
                f"{key}: this host lets no mirror use the environment variable {name}, only "
                f"{', '.join(allowed) or 'none'}",
                self.env.hint(name, allowed),
            )

    def refuse_sources(self, servers: Addresses) -> None:
        """Refuse brokers that `sources` does not name."""
        allowed = self.sources.entries
        if allowed is None:
            return
        for host, port in servers:
            if not _names(allowed, host, port):
                raise _refused(
                    f"bootstrap.servers: this host lets no mirror log in to {address_of(host, port)}, only to "
                    f"{', '.join(allowed) or 'none'}",
                    self.sources.hint(address_of(host, port), allowed),
                )

    def refuse_token_url(self, key: str, url: str) -> None:
        """Refuse a token endpoint: by default one without TLS, or at a host that `sources` does not name."""
        try:
            wanted = urlsplit(url)
            host, port = (wanted.hostname or "").lower(), wanted.port or _PORTS.get(wanted.scheme, 0)
        except ValueError:
            raise UsageError(f"{key} is not a URL", "write https://HOST/PATH") from None
        plain = f"{wanted.scheme}://{address_of(host, port)}{wanted.path}"
        if wanted.username is not None or wanted.password is not None or wanted.query or wanted.fragment:
            raise _refused(f"{key}: the address {plain} has a login or parameters", "write https://HOST/PATH")
        if self.token_urls.entries is not None:
            is_allowed = any(_is_below(wanted, urlsplit(one)) for one in self.token_urls.entries)
        else:
            is_named = self.sources.entries is None or _names(self.sources.entries, host, port, any_port=True)
            is_allowed = wanted.scheme == "https" and is_named
        if not is_allowed:
            raise _refused(
                f"{key}: this host lets no mirror send a secret to {plain}",
                self.token_urls.hint(url, self.token_urls.entries or ()),
            )

    def refuse_tickets(self, servers: Addresses) -> None:
        """Refuse to log in with this host's own Kerberos tickets, unless `sources` is set."""
        if not self.limits_sources:
            addresses = [address_of(host, port) for host, port in servers]
            raise _refused(
                f"bootstrap.servers: Kerberos tickets of this host are not used for {', '.join(addresses)}",
                f"name keyTab or ticketCache in sasl.jaas.config; to allow it, {self.sources.line(addresses)}",
            )

    def refuse_aws(self, servers: Addresses) -> None:
        """Refuse to sign in with this host's AWS credentials elsewhere than at MSK, unless `sources` names it."""
        for host, port in servers:
            if not MSK_HOST.search(host.lower()) and not _names(self.sources.entries or (), host, port):
                raise _refused(
                    f"a token of this host's AWS credentials is not sent to {address_of(host, port)}",
                    self.sources.hint(address_of(host, port), self.sources.entries or ()),
                )

    def refuse_unverified(self, servers: Addresses, *, is_aws: bool) -> None:
        """Refuse to send a password or token without TLS that verifies the broker; by default only one of AWS."""
        default = () if is_aws else ("*",)
        allowed = default if self.unverified.entries is None else self.unverified.entries
        for host, port in servers:
            if not _names(allowed, host, port):
                raise _refused(
                    f"a password or token is not sent to {address_of(host, port)} without verified TLS: SASL_SSL, "
                    "host names checked, and no ssl.truststore.certificates in the record itself",
                    self.unverified.hint(address_of(host, port), allowed),
                )


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge the properties of one record for the brokers that it names."""

    policy: TrustPolicy
    servers: Addresses
    #: Of a login that sends its secrets to a token endpoint.
    token_host: str = ""

    def reference(self, key: str, found: re.Match[str]) -> None:
        """Refuse a reference before it is followed."""
        provider, path, name = found["provider"], found["path"] or "", found["key"]
        if provider == "env":
            self.policy.refuse_variable(key, f"{path}:{name}" if path else name)
        elif provider in {"file", "dir"} and path:
            self.policy.refuse_path(key, path, path)

    def file(self, key: str, path: str, stored: str) -> None:
        """Refuse a file that a property names, `stored` before its references were resolved.

        Errors show a file's name, which must not have a secret inside it.
        """
        if key in _FILES:
            if REFERENCE.search(stored) and not REFERENCE.fullmatch(stored.strip()):
                raise _refused(f"{key}: {stored} has a reference beside other text", "write the file's full path")
            self.policy.refuse_path(key, path, stored)
            if key != "ssl.truststore.location":
                self.secret(key, path)

    def with_token_url(self, key: str, url: str) -> Judge:
        """Refuse a token endpoint; return a judge of the secrets that are sent to it."""
        self.policy.refuse_token_url(key, url)
        return replace(self, token_host=urlsplit(url).hostname or "")

    def secret(self, key: str, path: str, binding: str | None = None) -> None:
        """Refuse what is in a file if its own binding, or that in its folder, is to other brokers.

        Raises:
            UnreachableError: reason SECRET_UNRESOLVED; the folder's binding cannot be read.
        """
        folder = str(Path(path).parent)
        for place, sources in ((path, binding), (folder, _folder_binding(key, folder))):
            if sources is None:
                continue
            allowed = _listed(sources)
            wrong = [address_of(host, port) for host, port in self.servers if not _names(allowed, host, port)]
            if self.token_host and not _names(allowed, self.token_host, 0, any_port=True):
                wrong.append(f"the token endpoint {self.token_host}")
            if wrong:
                raise _refused(
                    f"{key}: {place} is for {', '.join(allowed) or 'no source'}, not for {wrong[0]}",
                    f"if that is intended, change {BINDING} there",
                )

    def all_of(self, properties: Mapping[str, str]) -> None:
        """Refuse what can be refused without following anything."""
        for key, value in properties.items():
            _require_usable(key, value)
        for shown, _, value in _fields(properties):
            _require_usable(shown, value)
        require_references_that_count(properties)
        for shown, name, value in _fields(properties):
            references = list(REFERENCE.finditer(value))
            for one in references:
                self.reference(shown, one)
            if value.strip() and not references and name in _FILES:
                self.policy.refuse_path(name, value.strip(), value.strip())


def require_references_that_count(properties: Mapping[str, str]) -> None:
    """Refuse properties to store with a reference elsewhere than in what holds a secret or names a file.

    Raises:
        PolicyError: names the properties and JAAS options.
    """
    fields = list(_fields(properties))
    misplaced = {shown for shown, name, value in fields if REFERENCE.search(value) and name not in _MAY_REFER}
    if misplaced:
        raise _refused(
            f"{', '.join(sorted(misplaced))}: a reference counts only in properties that hold a secret or name a file",
            "write the value itself; a file may have the whole login: sasl.jaas.config=${file:PATH:KEY}",
        )


def _require_usable(shown: str, value: str) -> None:
    if found := _IN_NO_PROPERTY.search(value):
        raise _refused(f"{shown} has the character {visible(found[0])}", "remove it")
    # the time to find references would grow with the square of their number
    if not all("}" in part for part in value.split("${")[1:-1]):
        raise _refused(f"{shown}: a reference begins before the one before it has ended", "write ${PROVIDER:PATH:KEY}")


def _fields(properties: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each property, and each option of a JAAS line: as shown in errors, its name, and its value."""
    for key, value in properties.items():
        if key != "sasl.jaas.config" or REFERENCE.fullmatch(value.strip()):
            yield key, key, value
            continue
        try:
            entries = parse_jaas(value)
        except UsageError:
            continue  # it is not used
        for entry in entries:
            for name, text in entry.options.items():
                yield f"{key}: {name}", name, text


def host_policy(environ: Mapping[str, str] | None = None) -> TrustPolicy:
    """Return the policy of this host as it is now.

    Raises:
        UsageError: `kmirror.toml` or a variable is invalid.
    """
    environment = os.environ if environ is None else environ
    config = load_config_file(environ)
    rules = {}
    for key, variable in _VARIABLES.items():
        if (text := environment.get(variable)) is not None:
            entries = _listed(text)
            if key == "paths":
                entries = tuple(str(expanded(one, variable)) for one in entries)
            if key == "paths" and (wrong := next((one for one in entries if not one.startswith("/")), None)):
                raise UsageError(f"{variable}: {wrong} is not an absolute path", "write /PATH[,/PATH…]")
            rules[key] = _Rule(key, entries, variable, True)
        else:
            found = config.trust.get(key)
            file = found.file if found is not None else config.writable
            rules[key] = _Rule(key, found.entries if found is not None else None, str(file), False)
    folders = ["/etc/kmirror", str(config_folder(environment)), environment.get("CREDENTIALS_DIRECTORY", "")]
    return TrustPolicy(default_paths=tuple(one for one in folders if one.startswith("/")), **rules)


def _folder_binding(key: str, folder: str) -> str | None:
    try:
        return read_file(Path(folder) / BINDING).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnreachableError(
            f"{key}: cannot read {folder}/{BINDING}: {why}", "make it readable", Reason.SECRET_UNRESOLVED
        ) from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _names(patterns: Iterable[str], host: str, port: int, *, any_port: bool = False) -> bool:
    """Return whether a pattern, HOST or HOST:PORT with wildcards, matches an address.

    Anyone can have the name 10.1.2.example.org: 10.1.2.* matches IP addresses only.
    """
    is_name = not _is_ip_address(host)
    for pattern in patterns:
        name, colon, number = pattern.lower().rpartition(":")
        if not colon or not number.isdecimal() or (":" in name and not name.endswith("]")):
            name, number = pattern.lower(), ""
        is_port = any_port or not number or int(number) == port
        if is_name and _is_of_ip_addresses(name):
            continue
        if is_port and fnmatchcase(host.lower(), name.removeprefix("[").removesuffix("]") if ":" in name else name):
            return True
    return False


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_of_ip_addresses(pattern: str) -> bool:
    has_digits_alone = any(map(str.isdigit, pattern)) and not any(map(str.isalpha, pattern))
    return any(one in pattern for one in "*?[") and (":" in pattern or has_digits_alone)


def _is_below(wanted: SplitResult, allowed: SplitResult) -> bool:
    """Return whether a URL is an allowed one, or below one that ends with a slash or has no path."""
    try:
        ports = [one.port or _PORTS.get(one.scheme, 0) for one in (wanted, allowed)]
    except ValueError:
        return False
    if (wanted.scheme, wanted.hostname, ports[0]) != (allowed.scheme, allowed.hostname, ports[1]):
        return False
    folder = allowed.path if allowed.path.endswith("/") or not allowed.path else None
    is_plain = not {".", ".."} & set(wanted.path.split("/")) and "%" not in wanted.path
    return wanted.path == allowed.path or (folder is not None and is_plain and wanted.path.startswith(folder))


def _refused(message: str, hint: str) -> PolicyError:
    return PolicyError(message, hint, Reason.SECRET_UNRESOLVED)
