"""Log in over an open connection: SaslHandshake, then SaslAuthenticate until both sides agree (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmirror.cluster.security.client_config import ClientConfig, scram_escaped
from kmirror.errors import Reason, UnreachableError

_UNSUPPORTED_SASL_MECHANISM = 33


def authenticate(exchange: Callable[[Any, int, float], Any], config: ClientConfig, address: str) -> int:
    """Authenticate with the configured mechanism; return the session's life in milliseconds, 0 for unlimited.

    `exchange(request, version, timeout)` sends one request and returns its answer.

    Raises:
        UnreachableError: reason AUTHENTICATION_FAILED; never says the password.
    """
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

    timeout = config.connect_timeout_ms / 1000
    name = config.sasl_mechanism or ""
    handshake = exchange(SaslHandshakeRequest(mechanism=name), 1, timeout)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise UnreachableError(
            f"{address} does not support SASL mechanism {name}",
            f"set sasl.mechanism to one it offers: {offered}"
            if handshake.error_code == _UNSUPPORTED_SASL_MECHANISM
            else f"the broker answers with error {handshake.error_code}",
            Reason.AUTHENTICATION_FAILED,
        )
    mechanism = _mechanism(config)
    lifetime_ms = 0
    try:
        while not mechanism.is_done():
            answer = exchange(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), 2, timeout)
            if answer.error_code:
                raise UnreachableError(
                    f"{address} refuses user {config.username}: {answer.error_message or 'authentication failed'}",
                    "check user name and password, and that the user has credentials for " + name,
                    Reason.AUTHENTICATION_FAILED,
                )
            lifetime_ms = answer.session_lifetime_ms or 0
            mechanism.receive(answer.auth_bytes)
    except ValueError as error:
        raise UnreachableError(
            f"{address} did not prove that it knows the password of {config.username}: {error}",
            "check that this is the right cluster",
            Reason.AUTHENTICATION_FAILED,
        ) from None
    return lifetime_ms


def _mechanism(config: ClientConfig) -> Any:
    from kafka.net.sasl.plain import SaslMechanismPlain
    from kafka.net.sasl.scram import SaslMechanismScram

    username = config.username or ""
    if config.sasl_mechanism == "PLAIN":
        return SaslMechanismPlain(sasl_plain_username=username, sasl_plain_password=config.password)
    return SaslMechanismScram(
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=scram_escaped(username),
        sasl_plain_password=config.password,
    )
