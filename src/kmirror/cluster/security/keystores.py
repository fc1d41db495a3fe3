"""The content of a key store in one of Java's formats, and the errors of reading it."""

from __future__ import annotations

from dataclasses import dataclass, field


class StoreError(Exception):
    """A store that cannot be used; the text says why, without secrets."""


class WrongPasswordError(StoreError):
    """A password that does not open the store, or the key of `alias` in it."""

    def __init__(self, alias: str | None = None) -> None:
        super().__init__("the password is wrong")
        self.alias = alias


class SeveralKeysError(StoreError):
    """More than one private key, and no way to choose."""

    def __init__(self, keys: int) -> None:
        super().__init__(f"it has {keys} private keys, and nothing says which to use")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A private key (PKCS #8, in clear) and its certificates, its own first, all in DER."""

    key: bytes = field(repr=False)
    chain: tuple[bytes, ...]
