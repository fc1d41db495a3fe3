"""Keys and certificates for tests of TLS, made afresh in each run: none is kept in the repository.

A root signs a broker's certificate and an intermediate; the intermediate signs a client's. Another root signs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

KEY_PASSWORD = "key-password"
_VALID_FOR = timedelta(days=7)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class _Identity:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, encryption: KeySerializationEncryption) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def write_tls_files(folder: Path) -> None:
    """Write PEM files into `folder`; keys are P-256 in PKCS #8, certificates are valid for a week.

    - `root.pem`: the root certificate; `another-root.pem`: one that signed nothing
    - `server.pem`: key and certificate of a broker (localhost, 127.0.0.1), signed by the root
    - `client.pem`: key (encrypted with `KEY_PASSWORD`), certificate of a client, and the intermediate that signed it
    - `client-clear-key.pem`: the same with the key in clear
    - `expired-client.pem`: key in clear and certificate of a client that was valid until yesterday, signed by the root
    - `expired-server.pem`: the same of a broker
    """
    root, another_root = _authority("kmirror test root"), _authority("another root")
    intermediate = _authority("kmirror test intermediate", root)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    server = _signed("broker", root, x509.SubjectAlternativeName(names))
    past = timedelta(days=-1)
    expired_client = _signed("client", root, x509.BasicConstraints(ca=False, path_length=None), valid_for=past)
    expired_server = _signed("broker", root, x509.SubjectAlternativeName(names), valid_for=past)
    client = _signed("client", intermediate, x509.BasicConstraints(ca=False, path_length=None))
    chain = client.certificate_pem() + intermediate.certificate_pem()
    encrypted_key = client.key_pem(BestAvailableEncryption(KEY_PASSWORD.encode()))
    files = {
        "root.pem": root.certificate_pem(),
        "another-root.pem": another_root.certificate_pem(),
        "server.pem": server.key_pem(NoEncryption()) + server.certificate_pem(),
        "client.pem": encrypted_key + chain,
        "client-clear-key.pem": client.key_pem(NoEncryption()) + chain,
        "expired-client.pem": expired_client.key_pem(NoEncryption()) + expired_client.certificate_pem(),
        "expired-server.pem": expired_server.key_pem(NoEncryption()) + expired_server.certificate_pem(),
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def _authority(name: str, issuer: _Identity | None = None) -> _Identity:
    return _signed(name, issuer, x509.BasicConstraints(ca=True, path_length=None), _SIGNS)


def _signed(
    name: str, issuer: _Identity | None, *extensions: x509.ExtensionType, valid_for: timedelta = _VALID_FOR
) -> _Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer_key = issuer.key if issuer else key
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=not isinstance(extension, x509.SubjectAlternativeName))
    return _Identity(key, builder.sign(issuer_key, SHA256()))
