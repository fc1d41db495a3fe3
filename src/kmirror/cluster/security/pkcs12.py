"""Read PKCS #12 files, as `keytool` and `openssl pkcs12` write them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kmirror.cluster.security.keystores import KeyEntry, SeveralKeysError, StoreError, WrongPasswordError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

#: A SEQUENCE, with which all DER begins.
MAGIC = b"\x30"

#: pkcs8ShroudedKeyBag (RFC 7292): the bags are not encrypted, only their content.
_KEY_BAG = bytes.fromhex("060b2a864886f70d010c0a0102")


def trusted_certificates(data: bytes, password: str | None) -> tuple[bytes, ...]:
    """Return the certificates in DER; without `password` only those that are not encrypted.

    Raises:
        StoreError: the password is wrong, or the file is damaged: the two cannot be distinguished.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    with _refusals():
        found = _loaded(data, password)
        certificates = ([found.cert] if found.cert is not None else []) + found.additional_certs
        return tuple(one.certificate.public_bytes(Encoding.DER) for one in certificates)


def key_entry(data: bytes, password: str) -> KeyEntry | None:
    """Return the key and its chain, None if there is no key.

    Raises:
        StoreError: as above, or it has more than one key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if (keys := data.count(_KEY_BAG)) > 1:
        raise SeveralKeysError(keys)
    with _refusals():
        found = _loaded(data, password)
        if found.key is None:
            return None
        chain = [found.cert.certificate] if found.cert is not None else []
        others = [one.certificate for one in found.additional_certs]
        while chain and (above := next((one for one in others if one.subject == chain[-1].issuer), None)) is not None:
            others.remove(above)
            chain.append(above)
        key = found.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return KeyEntry(key, tuple(one.public_bytes(Encoding.DER) for one in chain))


def _loaded(data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        return load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError:
        raise WrongPasswordError from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise StoreError for the library's errors about a store that is damaged inside, where no digest is checked.

    Its warnings about tolerated content (BER, odd certificates) are for developers, not for operators.
    """
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.x509 import InvalidVersion

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UnsupportedAlgorithm as error:
        raise StoreError(f"it is encrypted in a way that is not supported: {error}") from None
    except (ValueError, InvalidVersion):
        raise StoreError("a certificate in it is damaged") from None
    except InternalError:
        raise StoreError("a key in it is damaged") from None
