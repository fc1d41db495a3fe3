"""Tokens for OAUTHBEARER logins: one for all connections of a process, replaced before it expires.

A source fetches tokens; `TokenCache` keeps one for most of its lifetime. After that every new connection tries to get a
new one, and uses the old one if that fails. A token that a broker refused is dropped, so that the next connection uses
a new one.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kmirror.errors import KmirrorError, Reason, UnreachableError

#: The time-out for replacing a token that is still valid, and the pause after a failure.
_REFRESH_S = 2.0
_REFRESH_PAUSE_S = 10.0
#: The end of the year 9999; a later expiry time is not a time.
_LAST_SECOND = 253_402_300_799


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and when it expires (seconds since the epoch)."""

    value: str = field(repr=False)
    expires_at: float


class TokenSource(Hashable, Protocol):
    """A source of tokens for one login; `str` says whose they are and where they come from, without secrets."""

    @property
    def extensions(self) -> tuple[tuple[str, str], ...]:
        """SASL extensions (KIP-342) that are sent with every token."""

    @property
    def refresh_part(self) -> float:
        """The part of a token's lifetime after which it is replaced."""

    def fetch(self, timeout: float) -> Token:
        """Get a new token within `timeout` seconds.

        Raises:
            UnreachableError: reason AUTHENTICATION_FAILED where asking again does not help.
        """


class TokenCache:
    """The current token of each login. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: dict[TokenSource, _Login] = {}

    def token(self, source: TokenSource, timeout: float) -> Token:
        """Return a token that is valid now.

        Raises:
            UnreachableError: there is none within `timeout` seconds; reason AUTHENTICATION_FAILED where we are refused.
        """
        return self._login(source).token(timeout)

    def forget(self, source: TokenSource, token: Token) -> None:
        """Never return this token again: a broker refused it."""
        self._login(source).forget(token)

    def _login(self, source: TokenSource) -> _Login:
        with self._lock:
            return self._logins.setdefault(source, _Login(source, self._clock))


class _Login:
    """The token of one login. Threads that need it while it is being fetched wait, and get the same token or error."""

    def __init__(self, source: TokenSource, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._refresh_at = 0.0
        self._attempts = 0
        self._error: KmirrorError | None = None

    def token(self, timeout: float) -> Token:
        attempts = self._attempts
        with self._lock:
            now = self._clock()
            known = self._token if self._token and now < self._token.expires_at else None
            if known and now < self._refresh_at:
                return known
            if known is None and self._error is not None and self._attempts != attempts:
                raise self._error
            return self._renewed(known, timeout)

    def forget(self, token: Token) -> None:
        with self._lock:
            if self._token == token:
                self._token = None

    def _renewed(self, known: Token | None, timeout: float) -> Token:
        try:
            self._token = self._source.fetch(min(timeout, _REFRESH_S) if known else timeout)
        except KmirrorError as error:
            self._error = error
            if known is None:
                raise
            self._refresh_at = self._clock() + _REFRESH_PAUSE_S
            return known
        finally:
            self._attempts += 1
        now = self._clock()
        self._error = None
        self._refresh_at = now + (self._token.expires_at - now) * self._source.refresh_part
        return self._token


#: The tokens of this process.
TOKENS = TokenCache()


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a JSON web token, unverified; nothing for another kind of token."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def expiry_of(token: str, origin: str) -> float:
    """Return when a JSON web token expires, in seconds since the epoch.

    Raises:
        UnreachableError: reason AUTHENTICATION_FAILED; it has no expiry time.
    """
    expires_at = claims_of(token).get("exp")
    if not isinstance(expires_at, int | float) or isinstance(expires_at, bool) or not 0 <= expires_at <= _LAST_SECOND:
        raise UnreachableError(
            f"the token of {origin} has no expiry time",
            "kmirror needs JSON web tokens with the claim exp",
            Reason.AUTHENTICATION_FAILED,
        )
    return float(expires_at)
