"""Trust stores and key stores of Java client properties, as PEM text (KIP-651).

PEM is in the properties themselves or in the files they name. Stores in Java's own formats are refused with the
command that turns them into PEM. Text between the PEM blocks (`keytool` and `openssl` write some) is dropped, and
white space within one is set right: properties files fold what should be lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kmirror.errors import UsageError

_BLOCK = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----(?P<body>.*?)-----END (?P=label)-----", re.DOTALL)
_LINE_LENGTH = 64
_CONVERT_TRUST_STORE = (
    "turn it into PEM with `keytool -list -rfc -keystore {path} > {stem}.pem`, then set {location}={stem}.pem "
    "and {type}=PEM"
)
_CONVERT_KEY_STORE = {
    "JKS": "turn it into PEM with `keytool -importkeystore -srckeystore {path} -destkeystore {stem}.p12 -deststoretype "
    "PKCS12 && openssl pkcs12 -in {stem}.p12 -out {stem}.pem`, then set {location}={stem}.pem, {type}=PEM and "
    "ssl.key.password",
    "PKCS12": "turn it into PEM with `openssl pkcs12 -in {path} -out {stem}.pem`, then set {location}={stem}.pem, "
    "{type}=PEM and ssl.key.password",
}


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM text of trusted certificates, of the client's certificate chain and key; None where there is none."""

    ca_pem: str | None = None
    certificate_pem: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)


def tls_material(text: Callable[[str], str | None]) -> TlsMaterial:
    """Return what the `ssl.*` properties hold or name; `text(key)` gives a property's value, None for none.

    Raises:
        UsageError: not PEM, not readable, incomplete or contradictory; names the property, never shows a key.
    """
    trust_store = _store(text, "ssl.truststore", ("ssl.truststore.certificates",))
    key_store = _store(text, "ssl.keystore", ("ssl.keystore.key", "ssl.keystore.certificate.chain"))
    ca_pem = certificate_pem = key_pem = None
    if trust_store is not None:
        ca_pem = _certificates(trust_store)
        if not ca_pem:
            raise UsageError("ssl.truststore.* holds no certificate", "it needs -----BEGIN CERTIFICATE----- blocks")
    if key_store is not None:
        certificate_pem, key_pem = _certificates(key_store), _private_key(key_store)
        if not certificate_pem or not key_pem:
            raise UsageError(
                f"ssl.keystore.* holds no {'private key' if certificate_pem else 'certificate'}",
                "it needs the client's private key and its certificate, both as PEM blocks",
            )
    return TlsMaterial(ca_pem, certificate_pem, key_pem, text("ssl.key.password") if key_pem else None)


def _store(text: Callable[[str], str | None], prefix: str, inline_keys: tuple[str, ...]) -> str | None:
    location, store_type = text(f"{prefix}.location"), (text(f"{prefix}.type") or "JKS").upper()
    inline = {key: value for key in inline_keys if (value := text(key)) is not None}
    if location is None and not inline:
        return None
    if inline:
        key = next(iter(inline))
        if location is not None:
            raise UsageError(f"{key} and {prefix}.location contradict each other", "leave one of them")
        if store_type != "PEM":
            raise UsageError(f"{key} is PEM, but {prefix}.type is {store_type}", f"set {prefix}.type=PEM")
        return "\n".join(inline.values())
    if store_type == "PEM":
        if text(f"{prefix}.password") is not None:
            raise UsageError(
                f"{prefix}.password cannot be used with {prefix}.type=PEM",
                "remove it; the password of an encrypted key is ssl.key.password",
            )
        return _read(f"{prefix}.location", str(location))
    return _refuse(prefix, str(location), store_type)


def _read(key: str, path: str) -> str:
    try:
        return Path(path).read_bytes().decode("iso-8859-1")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{key}: cannot read {path}: {why}", "name a readable PEM file") from None


def _refuse(prefix: str, path: str, store_type: str) -> str:
    if "-----BEGIN " in _read(f"{prefix}.location", path):
        hint = f"the file is PEM: set {prefix}.type=PEM"
    elif prefix == "ssl.truststore":
        hint = _CONVERT_TRUST_STORE
    else:
        hint = _CONVERT_KEY_STORE.get(store_type, _CONVERT_KEY_STORE["JKS"])
    names = {
        "path": path,
        "stem": Path(path).with_suffix(""),
        "location": f"{prefix}.location",
        "type": f"{prefix}.type",
    }
    raise UsageError(f"{prefix}.location={path} is a {store_type} store, and kmirror reads PEM", hint.format(**names))


def _certificates(text: str) -> str:
    return "".join(_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("CERTIFICATE"))


def _private_key(text: str) -> str:
    return next((_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("PRIVATE KEY")), "")


def _rewritten(match: re.Match[str]) -> str:
    label, body = match["label"], match["body"]
    if ":" in body:  # headers of a traditional encrypted key: lines that have to stay
        lines = body.strip()
    else:
        packed = "".join(body.split())
        lines = "\n".join(packed[at : at + _LINE_LENGTH] for at in range(0, len(packed), _LINE_LENGTH))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
