"""The same logins for librdkafka, whose clients judge what kmirror does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.security.tokens import TOKENS, TokenSource


def librdkafka(config: ClientConfig, **extra: object) -> dict[str, Any]:
    """Return the configuration for confluent-kafka, `extra` (librdkafka's names, `**{"a.b": 1}`) on top."""
    optional: dict[str, object] = {
        "sasl.mechanism": config.sasl_mechanism,
        "sasl.username": config.username,
        "sasl.password": config.password,
    }
    if config.tls is not None:
        tls = config.tls.current()
        optional |= {
            "ssl.ca.pem": tls.ca_pem,
            "ssl.certificate.pem": tls.certificate_pem,
            "ssl.key.pem": tls.key_pem,
            "ssl.key.password": tls.key_password,
            "ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else "none",
        }
    if config.tokens is not None:
        optional["oauth_cb"] = _oauth_cb(config.tokens)
    return {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in config.bootstrap_servers),
        "client.id": config.client_id,
        "security.protocol": config.security_protocol,
        **{key: value for key, value in optional.items() if value is not None},
        **extra,
    }


def _oauth_cb(source: TokenSource) -> Callable[[str | None], tuple[str, float, str, dict[str, str]]]:
    def token(_: str | None) -> tuple[str, float, str, dict[str, str]]:
        found = TOKENS.token(source, 10)
        return found.value, found.expires_at, "", dict(source.extensions)

    return token
