"""Stores in Java's own formats, made by the JDK's keytool from the keys and certificates of `tests/support/tls.py`."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import (
    Certificate,
    CertificateBuilder,
    Name,
    NameAttribute,
    NameOID,
    load_pem_x509_certificates,
)

STORE_PASSWORD, OWN_KEY_PASSWORD = "store-password", "own-key-password"
#: keytool's options for what Java 8 wrote.
_AS_JAVA_8 = ("-J-Dkeystore.pkcs12.legacy",)


def write_stores(tls: Path, folder: Path) -> None:
    """Write stores into `folder`, opened by STORE_PASSWORD; those of clients hold the key and the whole chain.

    - `client.jks`, `client.p12`, `java8.p12`: the client's key; `own.jks`: the same with OWN_KEY_PASSWORD
    - `server.p12`: the broker's key, opened by "another-password"
    - `two.jks`, `two.p12`: the key twice; `trust.jks`, `trust.p12`: the root
    """
    seed = folder / "seed.p12"
    seed.write_bytes(pkcs12_of((tls / "client-clear-key.pem").read_bytes(), STORE_PASSWORD))
    (folder / "server.p12").write_bytes(pkcs12_of((tls / "server.pem").read_bytes(), "another-password"))

    def imported(name: str, *options: str, alias: str = "client", key_password: str = STORE_PASSWORD) -> None:
        source = ("-srckeystore", str(seed), "-srcstorepass", STORE_PASSWORD, "-srcalias", "client")
        target = ("-destkeystore", str(folder / name), "-deststoretype", _type(name), "-destalias", alias)
        passwords = ("-deststorepass", STORE_PASSWORD, "-destkeypass", key_password)
        keytool("-importkeystore", "-noprompt", *source, *target, *passwords, *options)

    def twice(name: str) -> None:
        imported(name)
        imported(name, alias="other")

    def trusted(name: str) -> None:
        store = ("-keystore", str(folder / name), "-storetype", _type(name), "-storepass", STORE_PASSWORD)
        keytool("-importcert", "-noprompt", "-alias", "root", "-file", str(tls / "root.pem"), *store)

    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(imported, name) for name in ("client.jks", "client.p12")]
        made += [pool.submit(imported, "own.jks", key_password=OWN_KEY_PASSWORD)]
        made += [pool.submit(imported, "java8.p12", *_AS_JAVA_8)]
        made += [pool.submit(trusted, name) for name in ("trust.jks", "trust.p12")]
        made += [pool.submit(twice, name) for name in ("two.jks", "two.p12")]
    for done in made:
        done.result()


def keytool(*arguments: str) -> None:
    """Run keytool with Java's fastest start."""
    command = ["keytool", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def pkcs12_of(pem: bytes, password: str) -> bytes:
    """Return a store of the key and the certificates in a text."""
    certificate, *above = load_pem_x509_certificates(pem)
    key = load_pem_private_key(pem, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    encryption = BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"client", key, certificate, above, encryption)


def unprotected_pkcs12() -> list[bytes]:
    """Return PKCS #12 stores without a digest, which any corrupted byte would contradict; the same ones each time.

    The second is encrypted with STORE_PASSWORD, and the same but for its salts; the third holds no key.
    """
    key, issuer = derive_private_key(7, SECP256R1()), Ed25519PrivateKey.from_private_bytes(bytes(32))

    def certificate(name: str) -> Certificate:
        names = [Name([NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, "root")]
        begun = CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key.public_key())
        times = begun.not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2040, 1, 1))
        return times.serial_number(7).sign(issuer, None)

    encryption = PrivateFormat.PKCS12.encryption_builder().kdf_rounds(1).build(STORE_PASSWORD.encode())
    own, root = certificate("client"), certificate("root")
    stores = [
        pkcs12.serialize_key_and_certificates(b"client", key, own, [root], NoEncryption()),
        pkcs12.serialize_key_and_certificates(b"client", key, own, [root], encryption),
        pkcs12.serialize_key_and_certificates(None, None, None, [root], NoEncryption()),
    ]
    return [_without_digest(store) for store in stores]


def _without_digest(store: bytes) -> bytes:
    """Leave out the last part of a store, its MAC; each length that matters has two bytes."""
    # 30 82 …, the version (three bytes), 30 82 …
    version_at, content_at = 4, 7
    end = content_at + 4 + int.from_bytes(store[content_at + 2 : content_at + 4], "big")
    return b"\x30\x82" + (end - version_at).to_bytes(2, "big") + store[version_at:end]


def _type(name: str) -> str:
    return "JKS" if name.endswith(".jks") else "PKCS12"
