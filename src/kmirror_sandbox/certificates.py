"""The certificates of a secured sandbox cluster: an authority, one key for all nodes, and one for each mTLS user."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kmirror_sandbox.cluster_spec import BROKER_PRINCIPAL
from kmirror_sandbox.ports import LOOPBACK

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_VALID_FOR = timedelta(days=3650)


class _Identity(NamedTuple):
    """A key, its certificate, and the certificate of its signer."""

    key: EllipticCurvePrivateKey
    certificate: Certificate
    authority: Certificate


def make_certificates(directory: Path, password: str, users: Mapping[str, str]) -> None:
    """Write `ca.pem` (the CA that clients trust) and `node.p12` (key and certificate for localhost and 127.0.0.1).

    For each of `users` (name to store password) write `USER.p12`: key and certificate in the user's name.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    directory.mkdir(mode=0o700)
    authority = _new_identity("kmirror sandbox authority")
    (directory / "ca.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    node = _new_identity(BROKER_PRINCIPAL, authority, serves=True)
    _write_store(directory / "node.p12", "node", node, password)
    for user, own_password in users.items():
        _write_store(directory / f"{user}.p12", user, _new_identity(user, authority), own_password)


def _new_identity(name: str, signer: _Identity | None = None, *, serves: bool = False) -> _Identity:
    """Create a key and its certificate: of an authority, or signed by one for a client, which may also be a server."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_key = signer.key if signer else key
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=signer is not None,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signer is None,
        crl_sign=signer is None,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder(
            issuer_name=signer.certificate.subject if signer else subject,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(minutes=1),
            not_valid_after=now + _VALID_FOR,
        )
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if signer is None:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    else:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if serves:
        here = [x509.DNSName("localhost"), x509.IPAddress(ip_address(LOOPBACK))]
        builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
    certificate = builder.sign(signing_key, SHA256())
    return _Identity(key, certificate, signer.certificate if signer else certificate)


def _write_store(path: Path, alias: str, identity: _Identity, password: str) -> None:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

    key, certificate, authority = identity
    encryption = BestAvailableEncryption(password.encode())
    path.write_bytes(serialize_key_and_certificates(alias.encode(), key, certificate, [authority], encryption))
