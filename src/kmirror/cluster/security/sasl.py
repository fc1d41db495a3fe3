"""Log in over an open connection: SaslHandshake, then SaslAuthenticate until both sides agree (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmirror.cluster import KAFKA_IMPORTS
from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.security.client_config import ClientConfig, scram_escaped
from kmirror.cluster.security.kerberos import KerberosClient
from kmirror.cluster.security.msk import MskLogin
from kmirror.cluster.security.tokens import TOKENS, Token, TokenSource
from kmirror.errors import Reason, UnreachableError
from kmirror.words import visible

_UNSUPPORTED_SASL_MECHANISM = 33
#: Kerberos needs the most, three; something that never ends the login is not a broker.
_MOST_ROUNDS = 10
#: As Java's clients require: with fewer a password is quickly found from what the login reveals to a false broker.
_LEAST_ITERATIONS = 4096


def authenticate(exchange: Callable[[Any, int, float], Any], config: ClientConfig, address: str) -> int:
    """Authenticate with the configured mechanism; return the session's lifetime in milliseconds, 0 for unlimited.

    `exchange(request, version, timeout)` sends one request and returns its answer.

    Raises:
        UnreachableError: reason AUTHENTICATION_FAILED, or no token is available; never shows a password or a token.
    """
    timeout = config.connect_timeout_ms / 1000
    if isinstance(config.tokens, MskLogin):
        config.tokens.refuse_broker(address)
    # get the token before the broker waits for it
    bearer = _Bearer(config.tokens, timeout) if config.tokens is not None else None
    name = config.sasl_mechanism or ""
    handshake = exchange(kafka.SaslHandshakeRequest(mechanism=name), 1, timeout)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms or ()) or "none"
        raise UnreachableError(
            f"{address} does not support SASL mechanism {name}",
            f"set sasl.mechanism to one it offers: {offered}"
            if handshake.error_code == _UNSUPPORTED_SASL_MECHANISM
            else f"the broker answers with error {handshake.error_code}",
            Reason.AUTHENTICATION_FAILED,
        )
    mechanism = bearer or _mechanism(config, address)
    lifetime_ms = 0
    try:
        rounds = 0
        while not mechanism.is_done():
            rounds += 1
            if rounds > _MOST_ROUNDS:
                raise ValueError(f"the login has not ended after {_MOST_ROUNDS} answers")
            answer = exchange(kafka.SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), 2, timeout)
            if answer.error_code:
                if bearer is not None:
                    bearer.forget()
                raise _refusal(config, address, visible(answer.error_message or "authentication failed"))
            lifetime_ms = answer.session_lifetime_ms or 0
            if rounds == 1 and name.startswith("SCRAM"):
                _require_iterations(answer.auth_bytes or b"")
            mechanism.receive(answer.auth_bytes or b"")
    except (ValueError, KeyError, OverflowError) as error:
        why = str(error) if isinstance(error, ValueError) else "its answer does not fit the mechanism"
        raise UnreachableError(
            f"{address} did not prove that it knows the password of {config.username}: {why}",
            "check that this is the right cluster",
            Reason.AUTHENTICATION_FAILED,
        ) from None
    finally:
        if isinstance(mechanism, KerberosClient):
            mechanism.close()
    return lifetime_ms


def _require_iterations(server_first: bytes) -> None:
    """Raise ValueError if a broker asks for a proof that is easily guessed (RFC 5802, section 5.1)."""
    attributes = dict(pair.partition("=")[::2] for pair in server_first.decode().split(","))
    iterations = int(attributes["i"])
    if iterations < _LEAST_ITERATIONS:
        raise ValueError(f"it asks for {iterations} iterations, at least {_LEAST_ITERATIONS} are safe")


class _Bearer:
    """The client side of OAUTHBEARER (RFC 7628)."""

    def __init__(self, source: TokenSource, timeout: float) -> None:
        self._source = source
        self._token: Token = TOKENS.token(source, timeout)
        self._is_refused = self._is_done = False

    def is_done(self) -> bool:
        return self._is_done

    def auth_bytes(self) -> bytes:
        if self._is_refused:
            return b"\x01"  # the broker says why in its answer to this
        extensions = "".join(f"\x01{name}={value}" for name, value in self._source.extensions)
        return f"n,,\x01auth=Bearer {self._token.value}{extensions}\x01\x01".encode()

    def receive(self, answer: bytes) -> None:
        self._is_refused, self._is_done = bool(answer), not answer

    def forget(self) -> None:
        """Have the next connection use a new token."""
        TOKENS.forget(self._source, self._token)


def _refusal(config: ClientConfig, address: str, why: str) -> UnreachableError:
    if config.tokens is not None:
        return UnreachableError(
            f"{address} refuses the token of {config.tokens}: {why}",
            "check that its IAM policy allows kafka-cluster:Connect"
            if isinstance(config.tokens, MskLogin)
            else "the broker's log says why: issuer, audience, signature or time; compare the clocks",
            Reason.AUTHENTICATION_FAILED,
        )
    if config.kerberos is not None:
        return UnreachableError(
            f"{address} refuses {config.kerberos}: {why}",
            "the broker's log says why; compare sasl.kerberos.service.name with its principal, and the clocks",
            Reason.AUTHENTICATION_FAILED,
        )
    return UnreachableError(
        f"{address} refuses user {config.username}: {why}",
        f"check user name and password, and that the user has credentials for {config.sasl_mechanism}",
        Reason.AUTHENTICATION_FAILED,
    )


def _mechanism(config: ClientConfig, address: str) -> Any:
    with KAFKA_IMPORTS:
        from kafka.net.sasl.plain import SaslMechanismPlain
        from kafka.net.sasl.scram import SaslMechanismScram

    if config.kerberos is not None:
        return KerberosClient(config.kerberos, address.rpartition(":")[0].strip("[]"))
    username = config.username or ""
    if config.sasl_mechanism == "PLAIN":
        return SaslMechanismPlain(sasl_plain_username=username, sasl_plain_password=config.password)
    return SaslMechanismScram(
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=scram_escaped(username),
        sasl_plain_password=config.password,
    )
