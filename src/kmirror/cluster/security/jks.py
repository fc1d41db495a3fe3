"""Read Java key stores (JKS): trusted certificates, and private keys with their certificate chains.

Big-endian, as `sun.security.provider.JavaKeyStore` writes it; `text` is an int16 length and modified UTF-8:

    int32 0xFEEDFEED, int32 version (1 or 2), int32 number of entries
    each entry    int32 tag, text alias, int64 creation time, and
      tag 1       int32 length, protected key; int32 number of certificates, and these
      tag 2       one certificate
    certificate   text type (version 2 only), int32 length, X.509 in DER
    20 bytes      SHA-1 of the password in UTF-16BE, "Mighty Aphrodite", and all that comes before

A protected key is an EncryptedPrivateKeyInfo of Sun's own algorithm: a salt of 20 bytes, the PKCS #8 key combined by
exclusive or with SHA-1(password, salt), SHA-1(password, the digest before) …, and SHA-1(password, key).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kmirror.cluster.security.keystores import KeyEntry, SeveralKeysError, StoreError, WrongPasswordError

MAGIC = bytes.fromhex("feedfeed")

_DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_PROTECTION = bytes.fromhex("060a2b060104012a02110101")  # 1.3.6.1.4.1.42.2.17.1.1


@dataclass(frozen=True, slots=True)
class _ProtectedKey:
    alias: str
    protected: bytes = field(repr=False)
    chain: tuple[bytes, ...]


def trusted_certificates(data: bytes, password: str | None) -> tuple[bytes, ...]:
    """Return the certificates in DER, those of keys included; without `password` the digest is not checked.

    Raises:
        StoreError: the password is wrong, or it is not a whole JKS store.
    """
    trusted, keys = _entries(data, password)
    return (*trusted, *(key.chain[0] for key in keys if key.chain))


def key_entry(data: bytes, password: str, key_password: str | None) -> KeyEntry | None:
    """Return the key and its chain, None if there is no key; the key may have a password of its own.

    Raises:
        StoreError: as above, or it has more than one key.
    """
    _, keys = _entries(data, password)
    if len(keys) > 1:
        raise SeveralKeysError(len(keys))
    return _opened(keys[0], key_password or password) if keys else None


def _entries(data: bytes, password: str | None) -> tuple[list[bytes], list[_ProtectedKey]]:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    reader = _Reader(body, len(MAGIC))
    version = reader.number(4)
    if version not in {1, 2}:
        raise StoreError(f"it is of version {version}, not 1 or 2")
    trusted, keys = [], []
    for _ in range(reader.number(4)):
        tag, alias = reader.number(4), reader.text()
        reader.number(8)
        if tag == _KEY:
            protected = reader.block()
            chain = tuple(_certificate(reader, version) for _ in range(reader.number(4)))
            keys.append(_ProtectedKey(alias, protected, chain))
        elif tag == _CERTIFICATE:
            trusted.append(_certificate(reader, version))
        else:
            raise StoreError(f"entry {alias} has the unknown type {tag}")
    if password is not None and hashlib.sha1(_characters(password) + _WHITENER + body).digest() != digest:
        raise WrongPasswordError
    return trusted, keys


def _certificate(reader: _Reader, version: int) -> bytes:
    if version == 2:
        reader.text()
    return reader.block()


def _opened(key: _ProtectedKey, password: str) -> KeyEntry:
    sealed = _sealed(key.protected)
    salt, body, check = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:-_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
    secret, digest, stream = _characters(password), salt, bytearray()
    while len(stream) < len(body):
        digest = hashlib.sha1(secret + digest).digest()
        stream += digest
    plain = bytes(a ^ b for a, b in zip(body, stream, strict=False))
    if hashlib.sha1(secret + plain).digest() != check:
        raise WrongPasswordError(key.alias)
    return KeyEntry(plain, key.chain)


def _sealed(protected: bytes) -> bytes:
    """Return the octet string of SEQUENCE {SEQUENCE {algorithm, NULL}, OCTET STRING}."""
    outer = _Reader(_Reader(protected).element(0x30))
    if not outer.element(0x30).startswith(_PROTECTION):
        raise StoreError("a key is protected in a way that JKS does not have")
    return outer.element(0x04)


def _characters(password: str) -> bytes:
    return password.encode("utf-16-be")


@dataclass(slots=True)
class _Reader:
    """Read fields from bytes that may end anywhere."""

    data: bytes
    position: int = 0

    def take(self, size: int) -> bytes:
        taken = self.data[self.position : self.position + size]
        if len(taken) != size:
            raise StoreError("it ends in the middle of an entry")
        self.position += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "replace")

    def block(self) -> bytes:
        return self.take(self.number(4))

    def element(self, tag: int) -> bytes:
        """Read a DER element with this tag; return its content."""
        if self.number(1) != tag:
            raise StoreError("a key is not stored as JKS stores keys")
        length = self.number(1)
        return self.take(length if length < 0x80 else self.number(length & 0x7F))
