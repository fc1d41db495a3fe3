"""Explain a TLS error: why one side does not trust the other, and what to do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

from kmirror.cluster.security.client_config import ClientConfig

#: OpenSSL's codes (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAMES = {62, 64}


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
