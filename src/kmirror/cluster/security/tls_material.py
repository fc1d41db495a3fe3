"""Trust stores and key stores of Java client properties, as PEM text in memory.

PEM (KIP-651) is in the properties themselves or in the files they name. JKS and PKCS12 are recognised by the first
bytes of the file, whatever `type` says, as in Java. A key from such a store is unencrypted after that, in memory only.

Text between the blocks of a PEM text (`keytool` and `openssl` write some) is dropped, and white space inside them is
normalised: properties files fold lines.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kmirror.bounded_files import read_file
from kmirror.cluster.security import jks, pkcs12
from kmirror.cluster.security.keystores import KeyEntry, SeveralKeysError, StoreError, WrongPasswordError
from kmirror.cluster.security.properties import referenced_files
from kmirror.cluster.security.property_reader import PropertyReader
from kmirror.errors import PolicyError, UnreachableError, UsageError

#: Returns a property's value by its key, or None.
Text = Callable[[str], str | None]

STORE_LOCATIONS = ("ssl.truststore.location", "ssl.keystore.location")
_TYPES = ("JKS", "PKCS12", "PEM")
#: The first bytes of a store, and its type.
_MAGIC = {jks.MAGIC: "JKS", pkcs12.MAGIC: "PKCS12", bytes.fromhex("cececece"): "JCEKS"}
_COPY = "keytool -importkeystore -srckeystore {path} -destkeystore kmirror.p12 -deststoretype PKCS12"


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM text of trusted certificates, the client's certificate chain and its key; None for what is not configured."""

    #: Without them, the ones that this machine trusts.
    ca_pem: str | None = field(default=None, repr=False)
    #: With the chain above it.
    certificate_pem: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    #: If False, only the certificate's chain is verified, not the name in it.
    verify_hostname: bool = True
    #: The ssl.* properties, with references, and the state of the files that they name.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    stamps: tuple[tuple[int, int, int] | None, ...] = field(default=(), repr=False, compare=False)

    def current(self) -> TlsMaterial:
        """Return a copy with the current content of its stores; itself if they are unusable, as while being written."""
        stamps = file_stamps(self.properties)
        if stamps == self.stamps:
            return self
        try:
            read = tls_material(PropertyReader.of(self.properties, None).text)
            now = replace(read, verify_hostname=self.verify_hostname, properties=self.properties, stamps=stamps)
            now.context()
        except (UsageError, PolicyError, UnreachableError):
            return self
        return now

    def context(self) -> ssl.SSLContext:
        """Return a new TLS context.

        It trusts what librdkafka trusts, whatever the version of Python: certificates that Java accepts are accepted,
        but a chain has to end at a self-signed one, while Java accepts a trusted intermediate.

        Raises:
            UsageError: the certificates or the key cannot be used.
        """
        try:
            context = ssl.create_default_context(cadata=self.ca_pem)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"the trusted certificates cannot be used: {_reason(error)}", "check ssl.truststore.*"
            ) from None
        context.check_hostname = self.verify_hostname
        context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
        if self.certificate_pem is not None and self.key_pem is not None:
            self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        # the ssl module loads a client's key from a file only: this one is in memory and private
        with os.fdopen(os.memfd_create("kmirror-key"), "w", encoding="ascii") as file:
            file.write(f"{self.key_pem}{self.certificate_pem}")
            file.flush()
            try:
                # without a password OpenSSL would ask for one on the terminal
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=self.key_password or "")
            except (ssl.SSLError, ValueError) as error:
                raise UsageError(
                    f"the client's key and certificate cannot be used: {_reason(error)}",
                    "check that the key belongs to the certificate, and ssl.key.password",
                ) from None


def _reason(error: Exception) -> str:
    return (error.reason or "unusable") if isinstance(error, ssl.SSLError) else str(error)


def file_stamps(properties: Mapping[str, str]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return stamps that change when a file that `ssl.*` properties name is replaced, one with a password included."""
    values = [value for key, value in sorted(properties.items()) if key.startswith("ssl.")]
    files = [Path(properties[key].strip()) for key in STORE_LOCATIONS if properties.get(key, "").strip()]
    return tuple(_stamp(file) for file in (*files, *(file for value in values for file in referenced_files(value))))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True)
class _StoreFile:
    """A file in one of Java's formats, its password, and the properties that name it (`ssl.keystore` …)."""

    prefix: str
    path: str
    password: str | None = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def is_jks(self) -> bool:
        return self.data.startswith(jks.MAGIC)

    def __str__(self) -> str:
        return f"{self.prefix}.location={self.path}"


def tls_material(text: Text) -> TlsMaterial:
    """Read the certificates and keys that the `ssl.*` properties contain or name.

    Raises:
        UsageError: not readable, a wrong password, incomplete or contradictory; names the property, shows no secret.
    """
    ca_pem, (certificate_pem, key_pem, key_password) = _trusted(text), _own(text)
    return TlsMaterial(ca_pem, certificate_pem, key_pem, key_password)


def _trusted(text: Text) -> str | None:
    found = _found(text, "ssl.truststore", ("ssl.truststore.certificates",))
    if found is None:
        return None
    if isinstance(found, str):
        if not (blocks := pem_certificates(found)):
            raise UsageError("ssl.truststore.* has no certificate", "it needs -----BEGIN CERTIFICATE----- blocks")
        return blocks
    try:
        trusted = (jks if found.is_jks else pkcs12).trusted_certificates(found.data, found.password)
    except StoreError as error:
        raise _unusable(found, error) from None
    if not trusted:
        raise UsageError(
            f"{found} has no certificate",
            f"import a trusted one: keytool -importcert -file ca.pem -keystore {found.path}",
        )
    return "".join(pem_block("CERTIFICATE", one) for one in trusted)


def _own(text: Text) -> tuple[str | None, str | None, str | None]:
    """Return certificate chain, key, and the key's password if it is encrypted."""
    found = _found(text, "ssl.keystore", ("ssl.keystore.key", "ssl.keystore.certificate.chain"))
    if found is None:
        return None, None, None
    if isinstance(found, str):
        chain, key = pem_certificates(found), pem_private_key(found)
        if not chain or not key:
            raise UsageError(
                f"ssl.keystore.* has no {'private key' if chain else 'certificate'}",
                "it needs the client's private key and its certificate, both as PEM blocks",
            )
        return chain, key, text("ssl.key.password")
    entry = _key_entry(found, text("ssl.key.password"))
    if entry is None or not entry.chain:
        raise UsageError(
            f"{found} has no {'certificate of its key' if entry else 'private key'}",
            f"keytool -list -keystore {found.path} must show a PrivateKeyEntry",
        )
    return "".join(pem_block("CERTIFICATE", one) for one in entry.chain), pem_block("PRIVATE KEY", entry.key), None


def _key_entry(file: _StoreFile, key_password: str | None) -> KeyEntry | None:
    if file.password is None:
        raise UsageError(f"{file} has a password, and ssl.keystore.password is missing", "set ssl.keystore.password")
    try:
        if file.is_jks:
            return jks.key_entry(file.data, file.password, key_password)
        return pkcs12.key_entry(file.data, file.password)
    except WrongPasswordError as error:
        if error.alias is None:
            raise _unusable(file, error) from None
        key = "ssl.key.password" if key_password else "ssl.keystore.password"
        raise UsageError(
            f"{key} does not open the key {error.alias!r} in {file.path}",
            "set ssl.key.password to the password of the key, which may differ from that of the store",
        ) from None
    except StoreError as error:
        raise _unusable(file, error) from None


def _unusable(file: _StoreFile, error: StoreError) -> UsageError:
    if isinstance(error, SeveralKeysError):
        return UsageError(
            f"{file}: {error}", f"copy the one to use: {_COPY.format(path=file.path)} -srcalias NAME; name that store"
        )
    if not isinstance(error, WrongPasswordError):
        return UsageError(f"{file} cannot be read: {error}", f"try to read it: keytool -list -keystore {file.path}")
    if file.password is None:
        return UsageError(
            f"{file} cannot be read without a password, and {file.prefix}.password is missing",
            f"set {file.prefix}.password",
        )
    return UsageError(
        f"{file.prefix}.password does not open {file.path}",
        f"try password and file: keytool -list -keystore {file.path}",
    )


def _found(text: Text, prefix: str, inline_keys: tuple[str, ...]) -> str | _StoreFile | None:
    """Return PEM text, or the store file; None if neither is configured."""
    location, store_type = text(f"{prefix}.location"), (text(f"{prefix}.type") or "JKS").upper()
    inline = {key: value for key in inline_keys if (value := text(key)) is not None}
    if location is None and not inline:
        return None
    if store_type not in _TYPES:
        raise UsageError(f"this {prefix}.type is not supported", f"it is one of {', '.join(_TYPES)}")
    if inline:
        key = next(iter(inline))
        if location is not None:
            raise UsageError(f"{key} and {prefix}.location contradict each other", "keep one of them")
        if store_type != "PEM":
            raise UsageError(f"{key} is PEM, but {prefix}.type is {store_type}", f"set {prefix}.type=PEM")
        return "\n".join(inline.values())
    file = _StoreFile(prefix, str(location), text(f"{prefix}.password"), _read(f"{prefix}.location", str(location)))
    is_pem = b"-----BEGIN " in file.data
    kind = next((kind for magic, kind in _MAGIC.items() if not is_pem and file.data.startswith(magic)), None)
    if store_type == "PEM":
        if kind is not None:
            raise UsageError(f"{file} is a {kind} store, not PEM", f"set {prefix}.type={kind}")
        if file.password is not None:
            raise UsageError(
                f"{prefix}.password cannot be used with {prefix}.type=PEM",
                "remove it; the password of an encrypted key is ssl.key.password",
            )
        return file.data.decode("iso-8859-1")
    if kind in _TYPES:
        return file
    if is_pem:
        raise UsageError(f"{file} is PEM, but {prefix}.type is {store_type}", f"set {prefix}.type=PEM")
    if kind is None:
        raise UsageError(f"{file} is neither a JKS nor a PKCS12 store", "name a store that keytool -list can read")
    raise UsageError(f"{file} is a {kind} store, which is not supported", f"copy it: {_COPY.format(path=file.path)}")


def _read(key: str, path: str) -> bytes:
    try:
        return read_file(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{key}: cannot read {path}: {why}", "name a file that this user can read") from None


#: The body has no five dashes: a search that looked further for the end would take quadratic time.
_BLOCK = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----(?P<body>[^-]*(?:-{1,4}[^-]+)*)-----END (?P=label)-----")
_LINE_LENGTH = 64


def pem_certificates(text: str) -> str:
    """Return the pem_certificates in a text, or ""."""
    return "".join(_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("CERTIFICATE"))


def pem_private_key(text: str) -> str:
    """Return the first private key in a text, encrypted or not, or ""."""
    return next((_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("PRIVATE KEY")), "")


def pem_block(label: str, der: bytes) -> str:
    """Return a pem_block of these bytes."""
    return _folded(label, base64.b64encode(der).decode())


def _rewritten(match: re.Match[str]) -> str:
    label, body = match["label"], match["body"]
    if ":" in body:  # headers of a traditional encrypted key: their lines have to be kept
        return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"
    return _folded(label, "".join(body.split()))


def _folded(label: str, packed: str) -> str:
    lines = "\n".join(packed[at : at + _LINE_LENGTH] for at in range(0, len(packed), _LINE_LENGTH))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
