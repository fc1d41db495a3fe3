"""Sources of tokens: an OAuth 2 token endpoint that takes client credentials (KIP-768), or a file.

The request is the same as of Kafka's own clients: RFC 6749, section 4.4, with client id and secret in an Authorization
header.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus, urlencode, urlsplit

from kmirror.bounded_files import read_file
from kmirror.cluster.security.tls_material import TlsMaterial
from kmirror.cluster.security.tokens import Token, expiry_of
from kmirror.errors import Reason, UnreachableError

_MAX_ANSWER_BYTES = 1 << 20
_MAX_REASON = 200
#: A year; what claims to last longer, or is not a number, is not believed.
_LONGEST_LIFETIME_S = 366 * 86_400
#: Transient errors: time-outs, too many requests, and most errors of the server itself.
_TRANSIENT_CODES = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """The client credentials of one login, and the endpoint that returns tokens for them; times in milliseconds."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    #: RFC 6749 has id and secret encoded before they are joined; Kafka does so only if configured.
    encodes_credentials: bool = False
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_part: float = 0.8
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    #: How to verify the certificates of an https endpoint.
    tls: TlsMaterial | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"client {self.client_id} from {shown_url(self.url)}"

    def fetch(self, timeout: float) -> Token:
        """Request a token; retry transient errors, with growing pauses.

        Raises:
            UnreachableError: no token within `timeout` seconds; reason AUTHENTICATION_FAILED if we are refused.
        """
        deadline = time.monotonic() + timeout
        pause = self.retry_backoff_ms / 1000
        while True:
            left = deadline - time.monotonic()
            try:
                return self._ask(max(left, 0.1))
            except _TransientError as error:
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
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        from kmirror.cluster.security.timed_http import timed_handlers

        class Stay(HTTPRedirectHandler):
            """Follow no redirection: it would send the secret elsewhere."""

            def redirect_request(self, *_: object) -> None:
                return None

        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        headers = {"Accept": "application/json", "Authorization": f"Basic {self._credentials()}"}
        request = Request(self.url, urlencode(form).encode(), headers)
        handlers = timed_handlers(time.monotonic() + patience, self.tls.context() if self.tls else None)
        opener = build_opener(Stay, *handlers)
        limits = (patience, *(ms / 1000 for ms in (self.connect_timeout_ms, self.read_timeout_ms) if ms))
        try:
            with opener.open(request, timeout=min(limits)) as answer:
                body = answer.read(_MAX_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                reason = self._reason(error)
            if error.code in _TRANSIENT_CODES:
                raise _TransientError(reason) from None
            raise self._refused(reason) from None
        except (URLError, OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise UnreachableError(
                    f"TLS with {shown_url(self.url)} failed: {cause.verify_message}",
                    "name the CA as options of sasl.jaas.config: ssl.truststore.location and ssl.truststore.type",
                    Reason.AUTHENTICATION_FAILED,
                ) from None
            why = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
            raise _TransientError(why or type(cause).__name__) from None
        return self._token(body)

    def _credentials(self) -> str:
        pair = (self.client_id, self.client_secret)
        text = ":".join(map(quote_plus, pair) if self.encodes_credentials else pair)
        return base64.b64encode(text.encode()).decode()

    def _reason(self, error: Any) -> str:
        """Return the endpoint's description of an error (RFC 6749, section 5.2), with what we sent masked."""
        from http.client import HTTPException

        status = f"HTTP {error.code}"
        try:
            answer = _document(error.read(_MAX_ANSWER_BYTES))
            words = [one for key in ("error", "error_description") if isinstance(one := answer.get(key), str) and one]
        except (ValueError, OSError, HTTPException):
            words = []
        text = ": ".join([status, *words])
        for sent in (
            self._credentials(),
            self.client_secret,
            quote_plus(self.client_secret),
            quote(self.client_secret),
        ):
            text = text.replace(sent, "***")
        text = " ".join(text.split())
        return "".join(one if one.isprintable() else "?" for one in text)[:_MAX_REASON]

    def _refused(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"no token for {self}: {reason}",
            "check the client's id, its secret and scope, and sasl.oauthbearer.token.endpoint.url",
            Reason.AUTHENTICATION_FAILED,
        )

    def _token(self, body: bytes) -> Token:
        try:
            answer = _document(body)
        except ValueError:
            answer = {}
        value = answer.get("access_token") or answer.get("id_token")
        if not isinstance(value, str):
            raise self._refused("the answer has no access_token")
        if not value.isascii() or not value.isprintable() or " " in value:
            raise self._refused("the access_token in the answer is not a token")
        lifetime = answer.get("expires_in")
        if lifetime is None:
            return Token(value, expiry_of(value, str(self)))
        # preferred: unlike an expiry time, a lifetime does not depend on the server's clock
        if (
            isinstance(lifetime, bool)
            or not isinstance(lifetime, int | float)
            or not 0 < lifetime <= _LONGEST_LIFETIME_S
        ):
            raise self._refused("expires_in in the answer is not a number of seconds")
        return Token(value, time.time() + lifetime)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a token that another process renews, as Kubernetes does for service accounts."""

    path: str
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_part: float = 0.8

    def __str__(self) -> str:
        return self.path

    def fetch(self, timeout: float) -> Token:
        """Read the token.

        Raises:
            UnreachableError: the file cannot be read, or has no valid token.
        """
        try:
            value = read_file(self.path).decode("ascii").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a token"
            raise UnreachableError(
                f"cannot read the token in {self.path}: {why}",
                "the file of sasl.oauthbearer.token.endpoint.url must exist on every machine that copies",
                Reason.SECRET_UNRESOLVED,
            ) from None
        expires_at = expiry_of(value, self.path)
        if expires_at <= time.time():
            raise UnreachableError(
                f"the token in {self.path} has expired", "check what should renew it", Reason.AUTHENTICATION_FAILED
            )
        return Token(value, expires_at)


def shown_url(url: str) -> str:
    """Return a URL as errors show it: without a login and without parameters, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _document(body: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError: it is not one, or nested too deep."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def file_of_url(url: str) -> str | None:
    """Return the path of a file: URL, None for any other."""
    return url.removeprefix("file:").removeprefix("//") if url.startswith("file:") else None


class _TransientError(Exception):
    """Why there is no token now; a retry may help."""
