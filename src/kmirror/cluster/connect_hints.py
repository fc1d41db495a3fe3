"""What to say of an address at which no broker takes our connection, and of a TLS error."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

from kmirror.cluster.protocol.wire import INT32
from kmirror.cluster.security.client_config import ClientConfig

#: What an answer of another server than a Kafka broker begins with.
_HTTP, _TLS_ALERT = b"HTTP", b"\x15\x03"
#: OpenSSL's codes (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAMES = {62, 64}


def unreachable_hint(host: str, port: int, config: ClientConfig) -> str:
    """Return what to check if nothing answers: no one has typed an address that only the cluster's metadata has."""
    if (host, port) in config.bootstrap_servers:
        return "check the address, and that the broker is up and reachable from this machine"
    return (
        "the cluster reports this address for a broker (advertised.listeners): check that the broker is up, and that "
        "this machine can resolve the name and reach the port"
    )


def handshake_hint(config: ClientConfig) -> str:
    """Return what to check if something answers that does not complete the handshake."""
    return (
        f"is {config.security_protocol} the listener's security.protocol? "
        "A listener that wants TLS or SASL hangs up on a client that offers none, and one that has reached "
        "max.connections or max.connections.per.ip on every client; brokers before Kafka 2.4 are not supported"
    )


def strange_answer(head: bytes) -> str:
    """Return what the first four bytes of an answer say, which are no length that a broker would send."""
    if head == _HTTP:
        return "responds in HTTP: it is no Kafka broker"
    if head.startswith(_TLS_ALERT):
        return "responds in TLS, which the listener wants of its clients"
    return f"sent a response of {INT32.unpack(head)[0]} bytes: it may not be a Kafka broker"


def tls_refusal(error: ssl.SSLError, config: ClientConfig) -> tuple[str, str]:
    """Return what is wrong, and a hint; Java brokers do not say why they refuse a certificate, the certificate does."""
    what = getattr(error, "verify_message", None) or error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in {_NOT_YET_VALID, _EXPIRED}:
            return f"the broker's certificate: {what}", "renew it at the broker, or correct this machine's clock"
        if error.verify_code in _OTHER_NAMES:
            return what, (
                "connect by a name that is in the broker's certificate: bootstrap.servers here, advertised.listeners "
                "there; or have its CA issue one with this name"
            )
        return what, "ssl.truststore.* must contain the CA that signed the broker's certificate"
    if "ALERT" in what and ("CERTIFICATE" in what or "UNKNOWN_CA" in what):
        certificate = config.tls.certificate_pem if config.tls is not None else None
        if certificate is None:
            return f"the broker requires a client certificate ({what})", "set ssl.keystore.*"
        return (
            f"the broker refuses our certificate{_validity(certificate)} ({what})",
            "the certificate in ssl.keystore.* must be valid, and signed by a CA that the broker trusts",
        )
    return what, "check security.protocol and ssl.truststore.*: is this a TLS listener, signed by a trusted CA?"


def _validity(certificate_pem: str) -> str:
    from cryptography.x509 import load_pem_x509_certificate

    certificate, now = load_pem_x509_certificate(certificate_pem.encode()), datetime.now(UTC)
    if certificate.not_valid_after_utc < now:
        return f", which expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"
    if certificate.not_valid_before_utc > now:
        return f", which is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC on"
    return ""
