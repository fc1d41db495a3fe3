"""Where tokens come from: an OAuth 2 token endpoint that takes client credentials (KIP-768), or a file.

The request is that of Kafka's own clients: RFC 6749, section 4.4, with client id and secret in an Authorization header.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote_plus, urlencode

from kmirror.cluster.security.tokens import Token, expiry_of
from kmirror.errors import Reason, UnreachableError

_MAX_ANSWER_BYTES = 1 << 20
_MAX_TOLD = 200
#: What may pass: time-outs, too many requests, and most that is the server's own trouble.
_PASSING_CODES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Tls(Protocol):
    """How certificates of an https endpoint are checked; a `ClientConfig` does it."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a new TLS context."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """The client credentials of one login, and the endpoint that gives tokens for them; times in milliseconds."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    #: RFC 6749 has id and secret encoded before they are joined; Kafka does so only where it is told to.
    encodes_credentials: bool = False
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_part: float = 0.8
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    tls: Tls | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"client {self.client_id} from {self.url}"

    def fetch(self, timeout: float) -> Token:
        """Ask for a token; again, with growing pauses, while the endpoint has trouble that may pass.

        Raises:
            UnreachableError: no token within `timeout` seconds; reason AUTHENTICATION_FAILED where we are refused.
        """
        deadline = time.monotonic() + timeout
        pause = self.retry_backoff_ms / 1000
        while True:
            left = deadline - time.monotonic()
            try:
                return self._ask(max(left, 0.1))
            except _PassingError as error:
                if time.monotonic() + pause >= deadline:
                    raise UnreachableError(
                        f"cannot get a token for {self}: {error}",
                        "check sasl.oauthbearer.token.endpoint.url, and that it is reachable from this machine",
                    ) from None
            time.sleep(pause)
            pause = min(pause * 2, self.retry_backoff_max_ms / 1000)

    def _ask(self, patience: float) -> Token:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

        class Stay(HTTPRedirectHandler):
            """Follow no redirection: it would carry the secret elsewhere."""

            def redirect_request(self, *_: object) -> None:
                return None

        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        headers = {"Accept": "application/json", "Authorization": f"Basic {self._credentials()}"}
        request = Request(self.url, urlencode(form).encode(), headers)
        opener = build_opener(Stay, HTTPSHandler(context=self.tls.ssl_context() if self.tls else None))
        limits = (patience, *(ms / 1000 for ms in (self.connect_timeout_ms, self.read_timeout_ms) if ms))
        try:
            with opener.open(request, timeout=min(limits)) as answer:
                body = answer.read(_MAX_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                told = self._told(error)
            if error.code in _PASSING_CODES:
                raise _PassingError(told) from None
            raise self._refused(told) from None
        except (URLError, OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise UnreachableError(
                    f"TLS with {self.url} failed: {cause.verify_message}",
                    "name the CA as options of sasl.jaas.config: ssl.truststore.location and ssl.truststore.type",
                    Reason.AUTHENTICATION_FAILED,
                ) from None
            why = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
            raise _PassingError(why or type(cause).__name__) from None
        return self._token(body)

    def _credentials(self) -> str:
        pair = (self.client_id, self.client_secret)
        text = ":".join(map(quote_plus, pair) if self.encodes_credentials else pair)
        return base64.b64encode(text.encode()).decode()

    def _told(self, error: Any) -> str:
        """Return what the endpoint says of an error (RFC 6749, section 5.2), never with the secret in it."""
        told = f"HTTP {error.code}"
        try:
            answer = json.loads(error.read(_MAX_ANSWER_BYTES))
            words = [str(answer[key]) for key in ("error", "error_description") if answer.get(key)]
        except (ValueError, OSError, AttributeError):
            words = []
        text = " ".join(": ".join([told, *words]).replace(self.client_secret, "***").split())
        return "".join(one if one.isprintable() else "?" for one in text)[:_MAX_TOLD]

    def _refused(self, told: str) -> UnreachableError:
        return UnreachableError(
            f"no token for {self}: {told}",
            "check the client's id, its secret and scope, and sasl.oauthbearer.token.endpoint.url",
            Reason.AUTHENTICATION_FAILED,
        )

    def _token(self, body: bytes) -> Token:
        try:
            answer = json.loads(body)
            value = answer.get("access_token") or answer.get("id_token")
        except (ValueError, AttributeError):
            value = None
        if not isinstance(value, str):
            raise self._refused("the answer holds no access_token")
        life = answer.get("expires_in")
        # a life needs no clock that agrees with the server's
        is_told = isinstance(life, int | float) and not isinstance(life, bool)
        return Token(value, time.time() + life if is_told else expiry_of(value, str(self)))


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that something else keeps a fresh token in, as Kubernetes does for service accounts."""

    path: str
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_part: float = 0.8

    def __str__(self) -> str:
        return self.path

    def fetch(self, timeout: float) -> Token:
        """Read the token.

        Raises:
            UnreachableError: the file cannot be read, or holds none that is valid.
        """
        try:
            value = Path(self.path).read_text("ascii").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a token"
            raise UnreachableError(
                f"cannot read the token in {self.path}: {why}",
                "the file of sasl.oauthbearer.token.endpoint.url has to be there on every machine that copies",
                Reason.SECRET_UNRESOLVED,
            ) from None
        expires_at = expiry_of(value, self.path)
        if expires_at <= time.time():
            raise UnreachableError(
                f"the token in {self.path} is over", "see what should replace it", Reason.AUTHENTICATION_FAILED
            )
        return Token(value, expires_at)


def file_of_url(url: str) -> str | None:
    """Return the path in a URL of a file, None for another URL."""
    return url.removeprefix("file:").removeprefix("//") if url.startswith("file:") else None


class _PassingError(Exception):
    """Why there is no token now; there may be one soon."""
